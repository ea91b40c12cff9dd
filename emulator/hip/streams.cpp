#include "hip/streams.h"

#include <chrono>
#include <mutex>
#include <optional>

#include "hip/devices.h"
#include "hip/errors.h"
#include "hip/handles.h"

namespace emu::hip {
namespace {

using Clock = std::chrono::steady_clock;

struct Stream {
  int device;
};

struct Event {
  bool timed;
  std::mutex mutex;
  std::optional<Clock::time_point> recorded;
};

Handles<Stream>& streams() {
  static auto& handles = *new Handles<Stream>;
  return handles;
}

Handles<Event>& events() {
  static auto& handles = *new Handles<Event>;
  return handles;
}

constexpr uintptr_t kLegacyStream = 1, kPerThreadStream = 2;  // hipStreamLegacy, hipStreamPerThread

hipError_t make_stream(hipStream_t* stream) {
  return guarded([&] {
    if (stream == nullptr) return null_argument("stream");
    *stream = reinterpret_cast<hipStream_t>(streams().add(std::make_shared<Stream>(Stream{current_device()})));
    return hipSuccess;
  });
}

hipError_t invalid_event() { return fail(hipErrorInvalidHandle, "the event was destroyed, or never was one"); }

template <class Body>
hipError_t with_event(hipEvent_t handle, Body&& body) {
  return guarded([&] {
    const std::shared_ptr<Event> event = events().find(handle);
    return event != nullptr ? body(*event) : invalid_event();
  });
}

std::optional<Clock::time_point> time_of(Event& event) {
  const std::lock_guard lock(event.mutex);
  return event.recorded;
}

}  // namespace

hipError_t check_stream(hipStream_t stream) {
  const auto number = reinterpret_cast<uintptr_t>(stream);
  if (number == 0 || number == kLegacyStream || number == kPerThreadStream) return hipSuccess;
  if (streams().find(stream) != nullptr) return hipSuccess;
  return fail(hipErrorInvalidHandle, "the stream was destroyed, or never was one");
}

}  // namespace emu::hip

using namespace emu::hip;

hipError_t hipStreamCreate(hipStream_t* stream) { return make_stream(stream); }

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) { return make_stream(stream); }

hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned, int) { return make_stream(stream); }

hipError_t hipStreamDestroy(hipStream_t stream) {
  return guarded([&] {
    return streams().remove(stream) ? hipSuccess
                                    : fail(hipErrorInvalidHandle, "the stream was destroyed, or never was one");
  });
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
  return guarded([&] { return check_stream(stream); });
}

hipError_t hipStreamQuery(hipStream_t stream) {
  return guarded([&] { return check_stream(stream); });
}

hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  return with_event(event, [&](Event&) { return check_stream(stream); });
}

hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
  return guarded([&] {
    if (status == nullptr) return null_argument("status");
    *status = hipStreamCaptureStatusNone;  // there are no graphs
    return check_stream(stream);
  });
}

hipError_t hipEventCreate(hipEvent_t* event) { return hipEventCreateWithFlags(event, 0); }

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return guarded([&] {
    if (event == nullptr) return null_argument("event");
    auto made = std::make_shared<Event>();
    made->timed = (flags & hipEventDisableTiming) == 0;
    *event = reinterpret_cast<hipEvent_t>(events().add(std::move(made)));
    return hipSuccess;
  });
}

hipError_t hipEventRecord(hipEvent_t handle, hipStream_t stream) {
  return with_event(handle, [&](Event& event) {
    const hipError_t error = check_stream(stream);
    if (error != hipSuccess) return error;
    const std::lock_guard lock(event.mutex);
    event.recorded = Clock::now();
    return hipSuccess;
  });
}

hipError_t hipEventSynchronize(hipEvent_t handle) {
  return with_event(handle, [](Event&) { return hipSuccess; });
}

hipError_t hipEventQuery(hipEvent_t handle) {
  return with_event(handle, [](Event&) { return hipSuccess; });
}

hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  return with_event(start, [&](Event& first) {
    return with_event(stop, [&](Event& last) {
      if (milliseconds == nullptr) return null_argument("milliseconds");
      const auto from = time_of(first), to = time_of(last);
      if (!from || !to || !first.timed || !last.timed) {
        return fail(hipErrorInvalidHandle, "both events must be recorded, and be made with timing");
      }
      *milliseconds = std::chrono::duration<float, std::milli>(*to - *from).count();
      return hipSuccess;
    });
  });
}

hipError_t hipEventDestroy(hipEvent_t event) {
  return guarded([&] { return events().remove(event) ? hipSuccess : invalid_event(); });
}
