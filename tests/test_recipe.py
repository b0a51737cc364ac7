"""How weights change: LARS, learning rates over time and label smoothing are those of their
formulas."""

import math
from datetime import date

import pytest
import torch
from torch import nn

from ioprof.errors import CommandError
from ioprof.train.presets import load_preset, parse_preset, preset_names
from ioprof.train.recipe import Recipe, make_optimizer, make_schedule

PUBLISHED = {
    "tsubame-resnet50",
    "tsubame-io-resnet50",
    "tsubame-io-inception3",
    "tsubame-io-vgg16",
    "tsubame-io-alexnet",
    "mlperf-v0.6-resnet50",
    "mlperf-v0.7-resnet50",
    "rannc-mlp",
    "chainermn-resnet50",
}


def rates(recipe: Recipe, steps_per_epoch: int, total_steps: int) -> list[float]:
    """The learning rate of each step."""
    optimizer = make_optimizer(recipe, nn.Linear(2, 2), "cpu")
    schedule, found = make_schedule(recipe, optimizer, steps_per_epoch, total_steps), []
    for _ in range(total_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return found


def test_lars_is_that_of_you_et_al():
    """A weight's step is eta |w| / (|g| + decay |w|) times (g + decay w), with momentum; a bias has
    momentum alone."""
    pytest.importorskip("pytorch_optimizer")
    recipe = Recipe(optimizer="lars", lr=5.0, momentum=0.9, weight_decay=2e-4, lars_eta=1e-3)
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    optimizer = make_optimizer(recipe, layer, "cpu")
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    momenta = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for _ in range(5):
        gradients = [torch.randn_like(layer.weight), torch.randn_like(layer.bias)]
        layer.weight.grad, layer.bias.grad = (gradient.clone() for gradient in gradients)
        optimizer.step()
        ratio = 1e-3 * weight.norm() / (gradients[0].double().norm() + 2e-4 * weight.norm())
        momenta[0] = 0.9 * momenta[0] + ratio * (gradients[0].double() + 2e-4 * weight)
        momenta[1] = 0.9 * momenta[1] + gradients[1].double()
        weight, bias = weight - 5.0 * momenta[0], bias - 5.0 * momenta[1]

    torch.testing.assert_close(layer.weight.detach().double(), weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.bias.detach().double(), bias, rtol=1e-4, atol=1e-5)


def test_a_rate_in_steps_is_divided_by_ten_every_thirty_epochs():
    """0.1 for 30 epochs, 0.01 for the next 30, then 0.001."""
    found = rates(load_preset("tsubame-resnet50").recipe, 2, 180)
    assert pytest.approx([0.1 * 0.1 ** (step // 60) for step in range(180)]) == found


def test_a_polynomial_falls_to_zero_after_a_linear_warm_up():
    """5 epochs from nearly 0 to 5, then 5 (1 - t/T)^2 over the other 67 of 72 epochs."""
    found, warmup, rest = rates(load_preset("mlperf-v0.6-resnet50").recipe, 10, 720), 50, 670
    assert (
        pytest.approx([5 * (1e-3 + (1 - 1e-3) * step / warmup) for step in range(warmup)])
        == found[:warmup]
    )
    assert pytest.approx([5 * (1 - step / rest) ** 2 for step in range(rest)]) == found[warmup:]


def test_a_schedule_does_not_depend_on_how_much_of_it_is_run():
    """Whoever runs 20 steps of a preset gets the learning rates of its first 20 steps."""
    recipe = load_preset("mlperf-v0.7-resnet50").recipe
    assert rates(recipe, 10, 20) == rates(recipe, 10, 370)[:20]


def test_label_smoothing_spreads_a_tenth_over_all_classes():
    """Cross-entropy against 0.9 of the label and 0.1 / classes of each."""
    logits, label = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([1])
    probabilities = torch.softmax(logits, 1)[0]
    expected = -sum(
        (0.025 + (0.9 if each == 1 else 0)) * math.log(probabilities[each]) for each in range(4)
    )
    smoothing = load_preset("mlperf-v0.7-resnet50").recipe.label_smoothing
    assert pytest.approx(expected, rel=1e-6) == float(
        nn.CrossEntropyLoss(label_smoothing=smoothing)(logits, label)
    )


def test_the_presets_are_there_with_source_and_year():
    """Each of the published trainings, and where it is from; where no year is known, why not, in a
    field of its own."""
    presets = [load_preset(name) for name in preset_names()]
    assert {preset.name for preset in presets} == PUBLISHED
    assert all(preset.about and preset.source for preset in presets)
    for preset in presets:
        assert (preset.year is None) == bool(preset.undated)
        assert preset.year is None or preset.year in range(2012, date.today().year + 1)


def test_the_studies_on_four_gpus_have_256_samples_per_step():
    """Whatever the network."""
    for preset in map(load_preset, preset_names()):
        if preset.name.startswith("tsubame-io-"):
            assert (256, 10) == (
                int(preset.job["ranks"]) * int(preset.job["batch_size"]),
                preset.job["epochs"],
            )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[job]\nspeed = 1", r"\[job\] speed is unknown; choose one of workers, seed"),
        ('[job]\nranks = "two"', r"\[job\] ranks = 'two' is no int"),
        (
            '[recipe]\noptimizer = "adam"',
            "optimizer = 'adam' in the preset: unknown; choose one of sgd, lars",
        ),
        ("[job", "is not TOML"),
        (
            'year = 2020\nundated = "a web page"',
            r"give year or undated \(why there is no year\), not both",
        ),
    ],
)
def test_a_preset_that_says_nonsense_is_refused(text, message):
    """Each message says what is wrong and what may be there."""
    with pytest.raises(CommandError, match=message):
        parse_preset("mine.toml", text)


def test_an_unknown_preset_is_refused():
    """The message lists those that there are."""
    with pytest.raises(
        CommandError, match="--preset mlperf: unknown; choose one of chainermn-resnet50"
    ):
        load_preset("mlperf")
