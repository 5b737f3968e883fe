"""Writing a generator as ONNX and OpenVINO IR, with convolutions in float32 or int8."""

import io
import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caloscale.inference.export.target import spread
from caloscale.inference.generator import Generator
from caloscale.inference.runtime import BATCH, PACKAGES, Format, load, openvino_core, runtime_of
from caloscale.random import latent_noise

OPSET = 18
"""Version of the ONNX operators: ONNX Runtime 1.14 and later have them."""
CALIBRATED, CALIBRATED_AT_ONCE = 160, 8
"""Showers from which the ranges of int8 are taken, and how many are computed together."""


def exporter(format: Format) -> tuple[Callable[..., None], dict[str, str]]:
    """How a format is written (generator, graph, path, properties), and the versions of what writes it."""
    write = {"onnx": _write_onnx, "openvino": _write_openvino, "openvino-int8": _write_int8}[format]
    for package in PACKAGES[format]:
        load(package)
    return write, {"tensorflow": tf.__version__, **{name: version(name) for name in PACKAGES[format]}}


def named(generator: Generator, format: Format) -> Any:
    """The graph of a format from noise and the columns of the table of primaries to GeV, its output with a name."""
    traced = generator.graph(runtime_of(format))

    def cells_gev(*inputs: Any) -> dict[str, Any]:
        return {"cells_gev": traced(*inputs)}

    return tf.function(cells_gev, input_signature=traced.input_signature, autograph=False)


def _write_onnx(_: Generator, graph: Any, path: Path, properties: dict[str, str]) -> None:
    tf2onnx, onnx = load("tf2onnx"), load("onnx")
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    model, _ = tf2onnx.convert.from_function(
        graph, input_signature=graph.input_signature, opset=OPSET, custom_op_handlers={"Expm1": (_expm1, [])}
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


def _write_openvino(generator: Generator, graph: Any, path: Path, properties: dict[str, str]) -> None:
    load("openvino").save_model(_openvino_model(generator, graph, properties), str(path), compress_to_fp16=False)


def _openvino_model(generator: Generator, graph: Any, properties: dict[str, str]) -> Any:
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
        return model


def _write_int8(generator: Generator, graph: Any, path: Path, properties: dict[str, str]) -> None:
    """As `_write_openvino`, with inputs and weights of convolutions in 8 bits.

    Ranges come from showers over all that was trained on. The last convolutions, whose results are cells or their
    logarithms, and all that is no convolution stay as they are: an error in a logarithm is a factor of an energy.
    """
    nncf, model = load("nncf"), _openvino_model(generator, graph, properties)
    operations = model.get_ordered_ops()
    kept = {one.get_type_name() for one in operations} - {"Convolution", "Constant", "Convert", "Parameter", "Result"}
    ignored = nncf.IgnoredScope(types=sorted(kept), names=last_convolutions(operations), validate=False)
    noise, table = latent_noise(1, 0, CALIBRATED, generator.noise_size), spread(generator.card, CALIBRATED)
    inputs = {"noise": noise, **table}
    batches = [
        {name: values[first : first + CALIBRATED_AT_ONCE] for name, values in inputs.items()}
        for first in range(0, CALIBRATED, CALIBRATED_AT_ONCE)
    ]
    logging.getLogger("nncf").setLevel(logging.ERROR)  # nncf.set_log_level also changes handlers that are not its own
    with redirect_stdout(io.StringIO()):  # bars of progress
        quantized = nncf.quantize(
            model,
            nncf.Dataset(batches),
            subset_size=len(batches),
            preset=nncf.QuantizationPreset.MIXED,
            ignored_scope=ignored,
        )
    load("openvino").save_model(quantized, str(path), compress_to_fp16=False)


def last_convolutions(operations: Sequence[Any]) -> list[str]:
    """Names of the convolutions of an OpenVINO model from which no way leads to another one.

    operations: in their order, inputs first.
    """
    before: set[str] = set()
    last = []
    for one in reversed(operations):
        readers = [reader.get_node() for output in one.outputs() for reader in output.get_target_inputs()]
        leads = any(r.get_type_name() == "Convolution" or r.get_friendly_name() in before for r in readers)
        if leads:
            before.add(one.get_friendly_name())
        elif one.get_type_name() == "Convolution":
            last.append(one.get_friendly_name())
    return sorted(last)
