// Streams. A launch has ended when it returns, so a stream keeps its order by itself.
#pragma once

#include "hip/abi.h"

namespace emu::hip {

// hipSuccess if the stream exists: one that was created, or those that always are.
hipError_t check_stream(hipStream_t stream);

}  // namespace emu::hip
