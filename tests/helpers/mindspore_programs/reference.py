"""The same trainings in one process: NumPy, float64, backward passes written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.helpers.mindspore_programs import task

__all__ = ["attention", "layers", "network"]

Arrays = dict[str, np.ndarray]


def network(clip: float | None = None) -> Arrays:
    """Three matrices and two biases with a rectifier between."""
    return _train(task.network_weights(), task.batches(), _network_gradients, clip)


def layers() -> Arrays:
    """Equal layers with tanh."""
    return _train(task.layer_weights(), task.layer_batches(), _layer_gradients)


def attention() -> Arrays:
    """An attention of several heads without a mask."""
    return _train(task.attention_weights(), task.sequences(), _attention_gradients)


def _train(
    first: Arrays,
    batches: Sequence[tuple[np.ndarray, np.ndarray]],
    gradients_of: Callable[..., Arrays],
    clip: float | None = None,
) -> Arrays:
    weights = {name: weight.astype(np.float64) for name, weight in first.items()}
    moments = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for x, y in batches:
        gradients = gradients_of(weights, x.astype(np.float64), y.astype(np.float64))
        if clip is not None:
            norm = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients.values()))
            assert norm > clip, "nothing is clipped"
            gradients = {name: gradient * clip / norm for name, gradient in gradients.items()}
        for name, gradient in gradients.items():
            moments[name] = task.MOMENTUM * moments[name] + gradient
            weights[name] = weights[name] - task.LEARNING_RATE * moments[name]
    return weights


def _network_gradients(weights: Arrays, x: Any, y: Any) -> Arrays:
    embedded = x @ weights["embed"].T
    before = embedded @ weights["up"].T + weights["up_bias"]
    hidden = np.maximum(before, 0)
    out = hidden @ weights["down"].T + weights["down_bias"]
    of_out = 2 * (out - y) / out.size
    of_before = of_out @ weights["down"] * (before > 0)
    return {
        "embed": (of_before @ weights["up"]).T @ x,
        "up": of_before.T @ embedded,
        "up_bias": of_before.sum(0),
        "down": of_out.T @ hidden,
        "down_bias": of_out.sum(0),
    }


def _layer_gradients(weights: Arrays, x: Any, y: Any) -> Arrays:
    inputs = [x]
    for weight in weights.values():
        inputs.append(np.tanh(inputs[-1] @ weight.T))
    gradient = 2 * (inputs[-1] - y) / y.size
    gradients = {}
    for number, (name, weight) in reversed(list(enumerate(weights.items()))):
        gradient = gradient * (1 - inputs[number + 1] ** 2)
        gradients[name] = gradient.T @ inputs[number]
        gradient = gradient @ weight
    return gradients


def _attention_gradients(weights: Arrays, x: Any, y: Any) -> Arrays:
    batch, places, width = x.shape
    apart = (batch, places, task.HEADS, width // task.HEADS)

    def by_head(name: str) -> Any:
        return (x @ weights[name].T).reshape(apart).transpose(0, 2, 1, 3)

    def of_matrix(gradient: Any) -> Any:
        joined = gradient.transpose(0, 2, 1, 3).reshape(-1, width)
        return joined.T @ x.reshape(-1, width)

    query, key, value = by_head("query"), by_head("key"), by_head("value")
    scale = (width // task.HEADS) ** -0.5
    scores = np.exp(query @ key.transpose(0, 1, 3, 2) * scale)
    scores /= scores.sum(-1, keepdims=True)
    mixed = (scores @ value).transpose(0, 2, 1, 3).reshape(batch, places, width)
    of_out = 2 * (mixed @ weights["out"].T - y) / y.size
    of_mixed = (of_out @ weights["out"]).reshape(apart).transpose(0, 2, 1, 3)
    of_scores = of_mixed @ value.transpose(0, 1, 3, 2)
    of_scores = scores * (of_scores - (of_scores * scores).sum(-1, keepdims=True)) * scale
    return {
        "query": of_matrix(of_scores @ key),
        "key": of_matrix(of_scores.transpose(0, 1, 3, 2) @ query),
        "value": of_matrix(scores.transpose(0, 1, 3, 2) @ of_mixed),
        "out": of_out.reshape(-1, width).T @ mixed.reshape(-1, width),
    }
