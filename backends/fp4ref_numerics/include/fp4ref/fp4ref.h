// Block-scaled 4-bit and 8-bit formats, bit for bit: one include, nothing to link. C++17, host compilers and NVRTC.
#pragma once
#include <fp4ref/block.h>
#include <fp4ref/hadamard.h>
#include <fp4ref/layout.h>
#include <fp4ref/philox.h>
