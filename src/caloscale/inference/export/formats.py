"""Writing and computing a generator as ONNX and OpenVINO IR."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caloscale.inference.export.runtimes import BATCH, Format
from caloscale.inference.generator import Generator
from caloscale.inference.packages import load, openvino_core

OPSET = 18
"""Version of the ONNX operators: ONNX Runtime 1.14 and later have them."""
Compute = Callable[..., Any]


def exporter(format: Format) -> tuple[Callable[..., None], Compute, dict[str, str]]:
    """How a format is written (generator, graph, path, properties), how its file is computed, and the versions."""
    write, compute, packages = {
        "onnx": (_write_onnx, _compute_onnx, ("tf2onnx", "onnx", "onnxruntime")),
        "openvino": (_write_openvino, _compute_openvino, ("openvino",)),
    }[format]
    for package in packages:
        load(package)
    return write, compute, {"tensorflow": tf.__version__, **{name: version(name) for name in packages}}


def named(generator: Generator, format: Format) -> Any:
    """The graph of a format from noise and the columns of the table of primaries to GeV, its output with a name."""
    traced = generator.graph(format)

    def cells_gev(*inputs: Any) -> dict[str, Any]:
        return {"cells_gev": traced(*inputs)}

    return tf.function(cells_gev, input_signature=traced.input_signature, autograph=False)


def _write_onnx(_: Generator, graph: Any, path: Path, properties: dict[str, str]) -> None:
    tf2onnx, onnx = load("tf2onnx"), load("onnx")
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    model, _ = tf2onnx.convert.from_function(
        graph,
        input_signature=graph.input_signature,
        opset=OPSET,
        custom_op_handlers={"Expm1": (_expm1, [])},
    )
    model = _optimised(model)
    model.producer_name = "caloscale"
    for value in (*model.graph.input, *model.graph.output):
        first = value.type.tensor_type.shape.dim[0]
        if not first.dim_value:
            first.dim_param = BATCH
    onnx.helper.set_model_props(model, properties)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _optimised(model: Any) -> Any:
    """The same graph, constants folded and operators merged, in operators of the ONNX standard alone.

    Simulations run it with the optimisation of ONNX Runtime switched off.
    """
    onnx, onnxruntime = load("onnx"), load("onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 3
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        optimised = onnx.load(str(path))
    used = {node.domain for node in optimised.graph.node}
    for name in [one.domain for one in optimised.opset_import if one.domain not in used]:
        optimised.opset_import.remove(next(one for one in optimised.opset_import if one.domain == name))
    return optimised


def _expm1(context: Any, node: Any, name: str, _: Any) -> None:
    """ONNX has no exp(x) - 1; 2 sinh(x/2) exp(x/2) is the same and as exact near 0."""
    source, result = node.input[0], node.output[0]
    like = {"shapes": [context.get_shape(result)], "dtypes": [context.get_dtype(result)]}
    context.remove_node(node.name)
    half, two = (context.make_const(f"{name}_{n}", np.float32(n)).output[0] for n in (0.5, 2))
    x = context.make_node("Mul", [source, half], **like).output[0]
    sinh, exp = (context.make_node(operator, [x], **like).output[0] for operator in ("Sinh", "Exp"))
    product = context.make_node("Mul", [sinh, exp], **like).output[0]
    context.make_node("Mul", [product, two], outputs=[result], **like)


def _compute_onnx(path: Path, inputs: dict[str, Any]) -> Any:
    from caloscale.inference.onnx_runtime import open_session

    return open_session(path, threads=None).run(["cells_gev"], inputs)[0]


def _write_openvino(generator: Generator, graph: Any, path: Path, properties: dict[str, str]) -> None:
    openvino = load("openvino")
    # By way of a SavedModel: the converter of TensorFlow objects would report its use over the network.
    with tempfile.TemporaryDirectory() as folder:
        module = tf.Module()
        # What the graph reads must be saved with it. Not the network: Keras would trace each of its layers.
        variables = generator.network.variables
        module.read = [one if isinstance(one, tf.Variable) else one.value for one in variables]
        module.cells_gev = graph
        signatures = {"serving_default": module.cells_gev.get_concrete_function()}
        tf.saved_model.save(module, folder, signatures=signatures)
        model = openvino_core().read_model(folder)
        for name, text in properties.items():
            model.set_rt_info(text, name.split("."))
        openvino.save_model(model, str(path), compress_to_fp16=False)


def _compute_openvino(path: Path, inputs: dict[str, Any]) -> Any:
    compiled = openvino_core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(inputs)["cells_gev"]
