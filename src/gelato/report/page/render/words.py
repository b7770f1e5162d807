"""The words of the page that a newcomer does not know."""

from gelato.report.page.records import MEASURED, RunReport
from gelato.report.page.render.html import Html, section, table
from gelato.training.method import find_family
from gelato.training.presets import list_methods

_WORDS = {
    "return": "The sum of all rewards of an episode. Larger is better.",
    "policy": "The function that chooses an action in each state. It is what you would deploy.",
    "seed": "One repetition of the training with other random numbers. Seeds that differ much show "
    "that the result depends on luck.",
    "model": "A network that predicts the next state and the reward. The policies were trained in "
    "it, so they are only as good as the model.",
    "latent space": "The model’s own description of a state, with few numbers. The map shows it.",
    "penalty U": "How unlike the data a state and an action are: about 0 on typical data, and "
    "larger the farther away. The model is less reliable where U is large.",
    "trusted": "U is at most the limit. The limit is set so that a stated share of the steps of a "
    "new episode, by default 95%, are trusted if they are like the data.",
    "guard": "The test of U that is exported with the policy. When it fails, a controller should "
    "fall back to something safe.",
    "false alarm": "A step like the data that is not trusted.",
    "miss": "A step far from the data that is trusted.",
    "penalty weight λ": "How much reward a policy lost in training for each unit of U. A policy "
    "with a large λ stays close to the data.",
    "real data": "The share of logged steps in the training; the other steps were imagined.",
    "95% interval": "The range in which the true value lies, with 95% confidence.",
    "excluded": "An estimate without a sound basis; it decides nothing. Weighted estimates need 20 "
    "effective episodes: logged episodes in which the policy would have acted alike.",
    "held out": "Episodes that were kept aside to test the model.",
    "R²": "The share of the variation that the model explains: 1 is perfect, 0 is useless.",
    "rank correlation": "Whether two estimators put the policies in the same order: 1 is the same "
    "order, 0 no relation, −1 the reverse order.",
    "geodesic distance": "How far apart two states are for the model: the length of the shortest "
    "path between them, measured by how much its predictions change along the path.",
}
_ESTIMATORS = {
    "cross-model": "The return of a policy in models that it was not trained in. The estimated "
    "return and the verdict come from it.",
    "value, common λ": "What a critic expects of a policy, with the same λ for all policies.",
    "value, own λ": "What the policy’s own critic expects. A small λ makes it too large.",
    "fqe": "Fitted Q evaluation: a critic of the policy that is fitted to the logged steps.",
    "importance": "Logged returns, weighted by how likely the policy is to act as the log did.",
    "importance (self-normalised)": "The same, with weights divided by their sum.",
    "doubly robust": "The values of fqe, corrected by these weights.",
    "U along the path": "Minus the mean U of the policy’s imagined steps.",
    MEASURED: "The mean return in the simulator after the training. It decides nothing.",
}
_LEAD = "What the words on this page mean."


def render_words(run: RunReport) -> Html:
    """Write a table of words, with the methods and estimators that this page names."""
    rows = list(_WORDS.items())
    if run.policies is not None:
        families = dict.fromkeys(find_family(each["method"]) for each in run.policies.policies)
        methods = list_methods()
        for name in families:
            if name in methods and methods[name].help:
                rows.append((name, f"The method: {methods[name].help}."))
        for name in dict.fromkeys([*run.policies.estimators, *run.policies.compared]):
            if name in _ESTIMATORS:
                rows.append((name, _ESTIMATORS[name]))
    return section(
        "words",
        "Words",
        _LEAD,
        table("Words, and the estimators of this run", ("word", "meaning"), rows),
    )
