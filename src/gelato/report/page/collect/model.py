"""The section about the latent model."""

import numpy as np

from gelato.model.check import check_model
from gelato.model.fans import sample_fan
from gelato.progress import working
from gelato.report.page.collect.source import Source
from gelato.report.page.records import ModelSection

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def collect_model(source: Source) -> ModelSection | None:
    """Measure the model on held-out episodes, and sample rollouts of the shown seed."""
    fitted = source.fitted
    if fitted is None:
        return None
    with working("checking the model on held-out episodes"):
        check = source.try_to("model", lambda: check_model(fitted))
        if check is None:
            return None
        fan = sample_fan(fitted, seed_index=source.model_index)
    names = tuple(fitted.dataset.list_state_names())
    fans = []
    for dimension in fan.moving:
        quantiles = np.quantile(fan.sampled[:, :, dimension], _LEVELS, axis=0)
        fans.append(
            {
                "name": names[dimension],
                "truth": fan.truth[:, dimension].tolist(),
                "quantiles": quantiles.tolist(),
            }
        )
    return ModelSection(
        check=check,
        seed=source.seed,
        names=names,
        latent_size=fitted.config.latent_size,
        decoders=fitted.config.decoders,
        fans=tuple(fans),
    )
