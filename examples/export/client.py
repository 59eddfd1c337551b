"""Runs an exported model with NumPy alone: client.py FOLDER NODES WIDTH."""

import ctypes
import sys

import numpy as np


class Given(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("sizes", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64))]  # fmt: skip


class Output(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("nbytes", ctypes.c_int64), ("dtype", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("sizes", ctypes.c_int64 * 8)]  # fmt: skip


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("argument", ctypes.c_int32), ("position", ctypes.c_int64),
                ("numbers", ctypes.c_int64 * 3), ("message", ctypes.c_char * 488)]  # fmt: skip


CODES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}


def given(array: np.ndarray) -> Given:
    sizes = (ctypes.c_int64 * array.ndim)(*array.shape)
    return Given(array.ctypes.data, CODES[array.dtype.name], array.ndim, sizes, None)


def main(folder: str, nodes: int, width: int) -> None:
    x = (np.arange(nodes * width) % 7 - 3).astype(np.float32).reshape(nodes, width)
    edge_index = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes]).astype(np.int64)
    library, model, error, out = ctypes.CDLL(f"{folder}/model.so"), ctypes.c_void_p(), Error(), Output()
    weights = f"{folder}/weights.safetensors".encode()
    if library.gw_model_open_version(1, weights, ctypes.byref(model), ctypes.byref(error)):
        raise SystemExit(error.message.decode())
    inputs = (Given * 2)(given(x), given(edge_index))
    if library.gw_model_run(model, inputs, ctypes.byref(out), None, ctypes.byref(error)):
        raise SystemExit(error.message.decode())
    numbers = np.ctypeslib.as_array(ctypes.cast(out.data, ctypes.POINTER(ctypes.c_float)), tuple(out.sizes[: out.ndim]))
    print("\n".join(f"{number:.9g}" for number in numbers.ravel()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
