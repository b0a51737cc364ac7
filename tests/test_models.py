"""The models of the built-in job: parameters and operations are the published ones, and results
those of torchvision."""

import importlib
import sys
import warnings

import pytest
import torch
from repository import EXAMPLES
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ioprof.errors import CommandError
from ioprof.train.models import MODELS, default_model, make_model, model_facts

PUBLISHED = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "resnet50": 25_557_032,
    "inception3": 27_161_264,
}
"""Parameters with 1,000 classes, that of Inception-v3 with its auxiliary head."""


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(name: str, samples: int = 2) -> tuple[nn.Module, torch.Tensor]:
    with torch.device("meta"):
        return make_model(name, 1000), torch.zeros(
            (samples, *model_facts(name).sample_shape), dtype=torch.uint8
        )


def test_the_published_models_have_the_published_parameters():
    """The sizes that everybody counts are those of our tables."""
    assert PUBLISHED == {name: MODELS[name].parameters for name in PUBLISHED}


@pytest.mark.parametrize("name", MODELS)
def test_what_the_table_says_of_a_model_is_so(name):
    """Parameters and operations of the forward pass, as torch counts them, and the bytes of
    gradients that follow from them."""
    model, samples = on_meta(name)
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        model(samples)

    facts = model_facts(name)
    assert (facts.parameters, facts.forward_flops) == (
        parameters(model),
        counter.get_total_flops() // 2,
    )
    assert facts.gradient_bytes == 4 * parameters(model)


@pytest.mark.parametrize("name", [name for name, facts in MODELS.items() if facts.takes_images])
def test_a_model_of_images_gives_a_number_for_each_class(name):
    """The number of classes is that of the dataset; Inception-v3 has a second result in
    training."""
    with torch.device("meta"):
        model = make_model(name, 7)
        images = torch.zeros((2, *model_facts(name).sample_shape), dtype=torch.uint8)
        found = model(images)
        model.eval()
        assert (2, 7) == tuple(model(images).shape)

    assert [(2, 7)] * (2 if name == "inception3" else 1) == [
        tuple(each.shape) for each in (found if isinstance(found, tuple) else [found])
    ]


@pytest.fixture(scope="module")
def torchvision():
    """torchvision's definitions, which are no dependency: from where CI installs them for an
    example of another library.

    Where its library of operators does not fit this torch, the operators that its Python part names
    on import are declared.
    """
    before, operators = set(sys.modules), torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.path.insert(0, str(EXAMPLES))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no torchvision that fits this torch: {error}")
    finally:
        sys.path.remove(str(EXAMPLES))
        for module in set(sys.modules) - before:
            if module.partition(".")[0] == "torchvision":
                del sys.modules[module]


NAMES = {
    "alexnet": "alexnet",
    "vgg16": "vgg16",
    "resnet50": "resnet50",
    "inception3": "inception_v3",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_computes_what_torchvisions_does(torchvision, name):
    """With the same weights, in the order of their definition, both give the same results."""
    settings = {"init_weights": False} if name in ("inception3", "vgg16") else {}
    with torch.device("meta"):
        theirs = getattr(torchvision, NAMES[name])(**settings)
    ours, facts = make_model(name, 1000), model_facts(name)
    theirs = theirs.to_empty(device="cpu")
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    assert parameters(theirs) == facts.parameters
    with torch.no_grad():
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert own.shape == other.shape
            other.copy_(own)
    images = torch.randint(
        0,
        256,
        (2, *facts.sample_shape),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        expected = theirs.eval()(images.float() / 127.5 - 1)
        torch.testing.assert_close(ours.eval()(images), expected, rtol=1e-4, atol=1e-5)


def test_the_transformer_sees_no_token_that_it_is_to_predict():
    """What it says of a place depends on the source and on the tokens before that place."""
    torch.manual_seed(0)
    model = make_model("transformer", 1000).eval()
    tokens = torch.randint(0, 256, (1, 2, 16), dtype=torch.uint8)
    changed = tokens.clone()
    changed[0, 1, 10:] += 1
    with torch.no_grad():
        before, after = model(tokens), model(changed)

    assert (1, 256, 16) == tuple(before.shape)
    torch.testing.assert_close(before[:, :, :11], after[:, :, :11])
    assert not torch.allclose(before[:, :, 11:], after[:, :, 11:])


def test_an_unknown_model_is_refused():
    """The message names those that there are."""
    with pytest.raises(CommandError, match="--model vgg: unknown; choose one of alexnet, vgg16"):
        model_facts("vgg")
    assert ["small_cnn", "resnet50", "resnet50"] == [
        default_model(device) for device in ("cpu", "cuda", "emulated:p100")
    ]
