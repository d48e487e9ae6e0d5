"""Compiles a kernel with NVRTC; exit code 1 and the log on failure: LIBRARY GENERATION SOURCE."""
import ctypes
import os
import sys

library, generation, source = sys.argv[1:]
# NVRTC finds its library of built-in functions only if that is loaded already.
folder = os.path.dirname(library)
for name in sorted(os.listdir(folder)):
    if name.startswith("libnvrtc-builtins.so"):
        ctypes.CDLL(os.path.join(folder, name), ctypes.RTLD_GLOBAL)
nvrtc = ctypes.CDLL(library)
with open(source, "rb") as file:
    text = file.read()
program = ctypes.c_void_p()
if nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None):
    sys.exit("NVRTC does not start")
words = ["--std=c++17", "--gpu-architecture=" + generation, "-I" + os.path.dirname(source)]
options = (ctypes.c_char_p * len(words))(*[word.encode() for word in words])
if nvrtc.nvrtcCompileProgram(program, len(words), options):
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    sys.exit(log.value.decode())
