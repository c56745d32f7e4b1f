"""The portable conversions of storage types, which a processor with instructions for them never takes."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).parents[3]

PROGRAM = """
#include "csrc/cpu/storage.h"
#ifdef __F16C__
#error these are to be the portable conversions
#endif
using namespace s2attn::cpu;
template <typename storage_t>
void convert(const storage_t* halves, const float* values, int64_t count, float* widened, storage_t* narrowed) {
  for (int64_t i = 0; i < count; i += 4) {
    store_quad(widened + i, load_quad(halves + i));
    store_quad(narrowed + i, load_quad(values + i));
  }
}
extern "C" void convert_float16(const Float16* h, const float* f, int64_t n, float* w, Float16* s) {
  convert(h, f, n, w, s);
}
extern "C" void convert_bfloat16(const BFloat16* h, const float* f, int64_t n, float* w, BFloat16* s) {
  convert(h, f, n, w, s);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory = tmp_path_factory.mktemp("storage")
    (directory / "convert.cpp").write_text(PROGRAM)
    flags = ("-std=c++20", "-O1", "-fPIC", "-shared", "-Wno-psabi", f"-I{REPOSITORY}")
    subprocess.run(("g++", *flags, str(directory / "convert.cpp"), "-o", str(directory / "convert.so")), check=True)
    return ctypes.CDLL(str(directory / "convert.so"))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_portable_conversions_are_exact_and_round_to_nearest_even(library: ctypes.CDLL, name: str) -> None:
    dtype = getattr(torch, name)
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    # every upper half of a float with each of: exact, just beside a tie of either type, a tie, all ones
    low = torch.tensor([0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    bits = (torch.arange(1 << 16) << 16)[:, None] + low
    values = bits.flatten().to(torch.int32).view(torch.float32)
    halves = halves.repeat(low.numel())
    widened, narrowed = torch.empty_like(values), torch.empty_like(halves)
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (halves, values, widened, narrowed))
    first, second, third, fourth = pointers
    convert = getattr(library, f"convert_{name}")
    convert(first, second, ctypes.c_int64(values.numel()), third, fourth)
    torch.testing.assert_close(widened, halves.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(narrowed, values.to(dtype), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(widened), torch.signbit(halves))
    assert torch.equal(torch.signbit(narrowed), torch.signbit(values))
