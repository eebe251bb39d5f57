"""Trained policies for use without offrank: as JSON, a C header, an ONNX model, or a file of PyTorch tensors.

What is written maps a raw observation to the action that `TrainedPolicy.predict` returns: it holds the normaliser, the
layers, and the bounds and type of the actions. docs/guides/export.md describes the files and how to use them.
"""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from offrank.core.arrays import FloatArray
from offrank.core.errors import UsageError, did_you_mean, require
from offrank.core.files import write_atomically
from offrank.core.version import VERSION
from offrank.policies.trained import TrainedPolicy

FORMAT_VERSION = 1  # of the JSON and PyTorch files
OPSET, IR_VERSION = 17, 8  # of ONNX: read by onnxruntime 1.12 and later
C_TYPES = {
    "float64": "double",
    "float32": "float",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
}


def export_policy(policy: TrainedPolicy, format: str, out: Path) -> None:
    """Write a policy to a file of the given format: json, c, onnx or torch.

    Raises:
        UsageError: the format is unknown or cannot express the actions' type, a package that it needs is missing, or
            `out` is a folder.
        OffrankError: the file cannot be written.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}: one of {', '.join(FORMATS)}{did_you_mean(str(format), FORMATS)}")
    if out.is_dir():
        raise UsageError(f"{out} is a folder: give the file to write")
    write_atomically(out, FORMATS[format](policy))


def _contents(policy: TrainedPolicy) -> dict[str, Any]:
    """The policy by names, as docs/guides/export.md describes them."""
    kind, p = policy.kind, policy.kind.p
    low, high = (policy.low, policy.high) if policy.low is not None else (np.full(p, -np.inf), np.full(p, np.inf))
    choices, shape = policy.choices, policy.shape
    if policy.discrete and not choices:
        choices, shape = (p,), ()
    elif shape is None:
        shape = (len(choices) or p,)
    return {
        "format": "offrank policy",
        "format_version": FORMAT_VERSION,
        "offrank_version": VERSION,
        "policy": kind.name,
        "observation_size": kind.n,
        "mean": policy.whitening.mean,
        "scale": policy.whitening.scale,
        "layers": [_layer(**vars(layer)) for layer in kind.layers(policy.theta)],
        "discrete": policy.discrete,
        "first": policy.first,
        "choices": list(choices),
        "low": low,
        "high": high,
        "shape": list(shape),
        "dtype": "int64" if policy.discrete else policy.dtype,
    }


def _layer(tanh: bool, **arrays: FloatArray | None) -> dict[str, Any]:
    """A layer by names, without the arrays that it does not have."""
    present = {name: values for name, values in arrays.items() if values is not None}
    return {"activation": "tanh" if tanh else "identity", **present}


def _parts(contents: dict[str, Any]) -> list[tuple[int, int]]:
    """Where the outputs of each part of a discrete action start and end."""
    return list(pairwise([0, *accumulate(contents["choices"])]))


def _json(policy: TrainedPolicy) -> bytes:
    contents = _contents(policy)
    for name in ("low", "high"):  # JSON has no infinity
        contents[name] = [bound if np.isfinite(bound) else None for bound in contents[name].tolist()]
    lines = [f'  "{name}": {json.dumps(value, default=np.ndarray.tolist)}' for name, value in contents.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _torch(policy: TrainedPolicy) -> bytes:
    """A dictionary of tensors rather than a compiled module: TorchScript is deprecated, and PyTorch does not promise to
    read files of torch.export in later versions."""
    torch = require("torch", "torch")

    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: tensors(item) for name, item in value.items()}
        if isinstance(value, list):
            return [tensors(item) for item in value]
        return torch.tensor(value) if isinstance(value, np.ndarray) else value

    file = io.BytesIO()
    torch.save(tensors(_contents(policy)), file)
    return file.getvalue()


def _onnx(policy: TrainedPolicy) -> bytes:
    onnx = require("onnx", "onnx")
    contents, helper = _contents(policy), onnx.helper
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(values: Any) -> str:
        constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(values), f"constant{len(constants)}"))
        return str(constants[-1].name)

    def node(op: str, *inputs: Any, output: str | None = None, **attributes: Any) -> str:
        """Add an operator on outputs of others, by name, and on arrays. Returns the name of its output."""
        names = [value if isinstance(value, str) else constant(value) for value in inputs]
        nodes.append(helper.make_node(op, names, [output or f"value{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    x = z = node("Mul", node("Sub", "observation", contents["mean"]), contents["scale"])
    for layer in contents["layers"]:
        y = node("MatMul", x, layer["weights"].T)
        if "skip" in layer:
            y = node("Add", y, node("MatMul", z, layer["skip"].T))
        if "bias" in layer:
            y = node("Add", y, layer["bias"])
        x = node("Tanh", y) if layer["activation"] == "tanh" else y
    if policy.discrete:
        parts = [node("Slice", x, *(np.array([i]) for i in (start, end, -1))) for start, end in _parts(contents)]
        chosen = [node("ArgMax", part, axis=-1, keepdims=1) for part in parts]
        x = node("Add", node("Concat", *chosen, axis=-1), np.array([policy.first]))
    elif policy.low is not None:
        x = node("Min", node("Max", x, contents["low"]), contents["high"])
    x = node("Reshape", x, np.array([-1, *contents["shape"]]))
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(contents["dtype"]))
    node("Cast", x, output="action", to=dtype)
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observation", onnx.TensorProto.DOUBLE, ["batch", policy.kind.n])],
        [helper.make_tensor_value_info("action", dtype, ["batch", *contents["shape"]])],
        constants,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="offrank",
        producer_version=VERSION,
    )
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def _c(policy: TrainedPolicy) -> bytes:
    contents, n = _contents(policy), policy.kind.n
    if contents["dtype"] not in C_TYPES:
        raise UsageError(f"actions of type {contents['dtype']} have no type in C: one of {', '.join(C_TYPES)}")
    arrays = [_c_array("mean", contents["mean"]), _c_array("scale", contents["scale"])]
    code = [f"for (i = 0; i < {n}; i++) z[i] = (observation[i] - mean[i]) * scale[i];"]
    buffers, x = [f"z[{n}]"], "z"
    for k, layer in enumerate(contents["layers"]):
        outputs, inputs = layer["weights"].shape
        arrays += [_c_array(f"{name}{k}", layer[name]) for name in ("weights", "skip", "bias") if name in layer]
        buffers.append(f"x{k}[{outputs}]")
        code += [
            f"for (i = 0; i < {outputs}; i++) {{",
            f"    double y = {f'bias{k}[i]' if 'bias' in layer else '0.0'};",
            f"    for (j = 0; j < {inputs}; j++) y += weights{k}[i][j] * {x}[j];",
            *([f"    for (j = 0; j < {n}; j++) y += skip{k}[i][j] * z[j];"] if "skip" in layer else []),
            f"    x{k}[i] = {'tanh(y)' if layer['activation'] == 'tanh' else 'y'};",
            "}",
        ]
        x = f"x{k}"
    p = policy.kind.p
    if policy.discrete:
        for k, (start, end) in enumerate(_parts(contents)):
            code += [
                f"j = {start};",
                f"for (i = {start + 1}; i < {end}; i++) if ({x}[i] > {x}[j]) j = i;",
                f"action[{k}] = j + {policy.first - start};",
            ]
    else:
        value = f"{x}[i]"
        if policy.low is not None:
            arrays += [_c_array("low", contents["low"]), _c_array("high", contents["high"])]
            value = f"{value} < low[i] ? low[i] : {value} > high[i] ? high[i] : {value}"
        code.append(f"for (i = 0; i < {p}; i++) action[i] = (offrank_action)({value});")
    body = [*arrays, f"double {', '.join(buffers)};", "int i, j;", *code]
    text = _C_HEADER.format(
        version=VERSION,
        kind=policy.kind.name,
        observations=n,
        actions=len(contents["choices"]) if policy.discrete else p,
        type=C_TYPES[contents["dtype"]],
        body=textwrap.indent("\n".join(body), "    "),
    )
    return text.encode()


_C_HEADER = """\
/* A policy ({kind}) of offrank {version}, in C99. */
#ifndef OFFRANK_POLICY_H
#define OFFRANK_POLICY_H

#include <math.h>

#define OFFRANK_OBSERVATIONS {observations}
#define OFFRANK_ACTIONS {actions}

typedef {type} offrank_action;

/* observation: OFFRANK_OBSERVATIONS raw numbers; action: OFFRANK_ACTIONS numbers, which are written */
static inline void offrank_policy(const double *observation, offrank_action *action)
{{
{body}
}}

#endif
"""


def _c_array(name: str, values: FloatArray) -> str:
    """The declaration of a constant array (m,) or (m, n)."""
    sizes = "".join(f"[{size}]" for size in values.shape)
    inside = _c_numbers(values) if values.ndim == 1 else ",\n".join(f"{{{_c_numbers(row)}}}" for row in values)
    return f"static const double {name}{sizes} = {{\n{textwrap.indent(inside, '    ')}\n}};"


def _c_numbers(values: FloatArray) -> str:
    return textwrap.fill(", ".join(repr(value).replace("inf", "INFINITY") for value in values.tolist()), 108)


FORMATS: dict[str, Callable[[TrainedPolicy], bytes]] = {"json": _json, "c": _c, "onnx": _onnx, "torch": _torch}
