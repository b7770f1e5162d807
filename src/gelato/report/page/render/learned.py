"""What was learned, in sentences for a reader who does not know the project."""

from gelato.report.page.records import RunReport
from gelato.report.page.render.numbers import count_noun, write_number


def describe_learning(run: RunReport) -> tuple[str, ...]:
    """Say what the run learned from, what it learned, and which policy the page is about."""
    sentences = [_describe_training(run)]
    if run.model is not None:
        sentences.append(
            "On logged episodes that it never saw, the model predicts the change of the state in "
            f"one step with R² {write_number(run.model.change_r2)} (1 is perfect, 0 is useless)."
        )
        if run.model.is_poor:
            sentences.append("The model is poor: rely neither on the policies nor on estimates.")
    verdict = run.verdict
    if verdict.policy is not None:
        policy = f"{verdict.policy}, seed {verdict.seed}"
        if verdict.estimate is None:
            sentences.append(f"No policy is selected yet. This page describes the first: {policy}.")
        else:
            source = "the log alone" if not verdict.real_episodes else "the log and real episodes"
            sentences.append(f"gelato select ranked the policies by {source} and chose {policy}.")
    return tuple(sentences)


def _describe_training(run: RunReport) -> str:
    source = f"From the log {run.dataset}"
    if run.data is not None:
        steps = count_noun(run.data.summary["transitions"], "step")
        source = f"From {steps} in {count_noun(run.data.summary['episodes'], 'logged episode')}"
    count = 0 if run.policies is None else len(run.policies.policies)
    policies = "1 policy" if count == 1 else f"{count:,} policies"
    if run.model is None:
        return f"{source}, this run learned {policies}." if count else f"{source}: nothing yet."
    if not count:
        return f"{source}, this run learned a model of the environment."
    return f"{source}, this run learned a model of the environment and, in this model, {policies}."
