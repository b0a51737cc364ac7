"""What a tracker of experiments gets of a run: numbers by name."""

from ioprof.format.run_record import Summary


def scalars(summary: Summary) -> dict[str, float]:
    """`ioprof/samples_per_s`, `ioprof/step_s`, and `ioprof/share/CAUSE`, a part of the steps' time
    from 0 to 1. What was not measured is left out.
    """
    shares = {f"ioprof/share/{each.cause}": each.share for each in summary.steps.causes}
    found = {
        "ioprof/samples_per_s": summary.throughput.steady_samples_per_s,
        "ioprof/step_s": summary.steps.mean_s,
        **shares,
    }
    return {name: float(value) for name, value in found.items() if value is not None}
