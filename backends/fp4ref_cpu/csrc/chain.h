// Jobs one after the other, in one call: their words follow those of the chain.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

struct ChainJob {
    struct Step {
        void (*function)(void* job);
        size offset;  // bytes from the beginning of the chain to the job
    };
    size count;
    Step steps[1];  // and more
};

struct Chains {
    static void chain(ChainJob& job)
    {
        for (size i = 0; i < job.count; ++i) job.steps[i].function((byte*)&job + job.steps[i].offset);
    }
};

}  // namespace fp4ref_cpu
