"""What the programs learn: data and first weights, the same on every rank. NumPy only."""

import numpy as np

STEPS, BATCH = 5, 8
INPUTS, HIDDEN, OUTPUTS = 8, 16, 5
LAYERS = 4
SEQUENCE, HEADS = 8, 4
LEARNING_RATE, MOMENTUM = 0.1, 0.9
CLIP = 0.2


def _random(*shapes):
    generator = np.random.RandomState(7)
    return [generator.randn(*shape).astype(np.float32) for shape in shapes]


def rows():
    """Inputs and targets of all steps, for a network of three matrices."""
    return _random((STEPS * BATCH, INPUTS), (STEPS * BATCH, OUTPUTS))


def batches():
    """The same rows, one pair of arrays for each step."""
    x, y = rows()
    return list(zip(np.split(x, STEPS), np.split(y, STEPS), strict=True))


def network_weights():
    """The first weights of this network, by name."""
    names = ["embed", "up", "up_bias", "down", "down_bias"]
    shapes = [(INPUTS, INPUTS), (HIDDEN, INPUTS), (HIDDEN,), (OUTPUTS, HIDDEN), (OUTPUTS,)]
    return {name: weight * 0.3 for name, weight in zip(names, _random(*shapes), strict=True)}


def layer_weights():
    """The first weights of equal layers, one after the other."""
    weights = _random(*[(INPUTS, INPUTS)] * LAYERS)
    return {f"layer{number}": weight * 0.4 for number, weight in enumerate(weights)}


def layer_batches():
    """Inputs and targets of these layers."""
    x, y = _random((STEPS * BATCH, INPUTS), (STEPS * BATCH, INPUTS))
    return list(zip(np.split(x, STEPS), np.split(y, STEPS), strict=True))


def attention_weights():
    """The first weights of an attention."""
    names = ["query", "key", "value", "out"]
    weights = _random(*[(HIDDEN, HIDDEN)] * len(names))
    return {name: weight * 0.3 for name, weight in zip(names, weights, strict=True)}


def sequences():
    """Inputs and targets of an attention: (batch, place in the sequence, hidden)."""
    x, y = _random(*[(STEPS, 2, SEQUENCE, HIDDEN)] * 2)
    return list(zip(x, y, strict=True))
