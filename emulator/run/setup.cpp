#include "run/setup.h"

#include <algorithm>

namespace emu {
namespace {

constexpr size_t kPacketBytes = 64, kQueueBytes = 256;
// Kernels whose stack the compiler cannot bound (recursion, indirect calls) get this much beyond what it knows of.
constexpr u32 kDynamicStackBytes = 16384;

struct Placer {
  u8* base;
  template <class T>
  void put(size_t offset, T value) {
    std::memcpy(base + offset, &value, sizeof value);
  }
};

// Metadata "Code Object V5 kernel argument" value kinds.
u64 hidden_value(const std::string& kind, const LaunchShape& shape, u64 queue) {
  for (int axis = 0; axis < 3; ++axis) {
    const std::string suffix = std::string("_") + "xyz"[axis];
    if (kind == "hidden_block_count" + suffix) return shape.grid[axis];
    if (kind == "hidden_group_size" + suffix) return shape.block[axis];
  }
  if (kind == "hidden_grid_dims")
    return shape.grid[2] * shape.block[2] > 1 ? 3 : shape.grid[1] * shape.block[1] > 1 ? 2 : 1;
  if (kind == "hidden_dynamic_lds_size") return shape.dynamic_lds;
  if (kind == "hidden_private_base") return kPrivateAperture >> 32;
  if (kind == "hidden_shared_base") return kSharedAperture >> 32;
  if (kind == "hidden_queue_ptr") return queue;
  return 0;  // remainders and global offsets are 0; there is no printf buffer, host call, heap or device queue
}

void fill_packet(Placer packet, const Kernel& kernel, const LaunchShape& shape, u64 arguments) {
  const u16 dimensions = static_cast<u16>(hidden_value("hidden_grid_dims", shape, 0));
  packet.put<u16>(2, dimensions);
  for (size_t axis = 0; axis < 3; ++axis) {
    packet.put<u16>(4 + 2 * axis, static_cast<u16>(shape.block[axis]));
    packet.put<u32>(12 + 4 * axis, shape.grid[axis] * shape.block[axis]);
  }
  packet.put<u32>(24, kernel.scratch_bytes);
  packet.put<u32>(28, kernel.lds_bytes + shape.dynamic_lds);
  packet.put<u64>(40, arguments);
}

// gfx90a and before reach scratch through a buffer descriptor whose addresses are swizzled by lane
// (LLVM "AMDGPU Backend", Private Segment Buffer): stride 0, index stride 64, lane id added.
void put_scratch_descriptor(u32* sgpr, Wave& wave) {
  const u64 base = reinterpret_cast<u64>(wave.scratch.data());
  sgpr[0] = static_cast<u32>(base);
  sgpr[1] = static_cast<u32>(base >> 32 & 0xffff) | 1u << 31;
  sgpr[2] = static_cast<u32>(wave.scratch.size());
  sgpr[3] = 3u << 21 | 1u << 23;
}

void put_user_sgprs(Wave& wave, const Kernel& kernel, const DispatchMemory& memory) {
  u32 at = 0;
  auto put64 = [&](u64 value) {
    store64(&wave.sgpr[at], value);
    at += 2;
  };
  const u64 scratch = reinterpret_cast<u64>(wave.scratch.data());
  if (kernel.properties & 1) {
    put_scratch_descriptor(&wave.sgpr[at], wave);
    at += 4;
  }
  if (kernel.properties & 2) put64(memory.packet);
  if (kernel.properties & 4) put64(memory.queue);
  if (kernel.properties & 8) put64(memory.arguments);
  if (kernel.properties & 16) put64(0);        // dispatch id
  if (kernel.properties & 32) put64(scratch);  // flat scratch
  if (kernel.properties & 64) wave.sgpr[at++] = kernel.scratch_bytes;
  const u32 length = kernel.preload & 127, offset = kernel.preload >> 7;
  for (u32 i = 0; i < length; ++i) {
    std::memcpy(&wave.sgpr[at++], memory_at(memory.arguments) + (offset + i) * 4, 4);
  }
}

// Returns the number of SGPRs the launch has filled in.
u32 put_system_sgprs(Wave& wave, const Kernel& kernel, const u32* workgroup) {
  u32 at = kernel.rsrc2 >> 1 & 31;
  for (int axis = 0; axis < 3; ++axis) {
    if (kernel.rsrc2 >> (7 + axis) & 1) wave.sgpr[at++] = workgroup[axis];
  }
  if (kernel.rsrc2 >> 10 & 1) wave.sgpr[at++] = 0;
  // The descriptor's base already is the wave's own memory, so its offset is 0. Clang's prologue adds it even where the
  // linker finds that no scratch is needed and the descriptor does not ask for it.
  if (!wave.target->architected_flat_scratch) wave.sgpr[at++] = 0;
  return at;
}

// MODE as the descriptor sets it: rounding and denormals, DX10_CLAMP, IEEE (which gfx12 does not have), FP16_OVFL.
u32 initial_mode(const Kernel& kernel, const Target& target) {
  u32 mode = kernel.rsrc1 >> 12 & 0xff;
  if (target.family != Family::gfx12) mode |= (kernel.rsrc1 >> 21 & 1) << 8 | (kernel.rsrc1 >> 23 & 1) << 9;
  return mode | (kernel.rsrc1 >> 26 & 1) << 23;
}

void put_work_items(Wave& wave, const Kernel& kernel, const u32* block, u32& initial_vgprs) {
  const bool packed = wave.target->cdna != 1;  // from gfx90a on: 10 bits an axis in v0
  initial_vgprs = packed ? 1 : 1 + (kernel.rsrc2 >> 11 & 3);
  const u32 threads = block[0] * block[1] * block[2];
  u64 exec = 0;
  for (int lane = 0; lane < wave.lanes; ++lane) {
    const u32 item = static_cast<u32>(wave.id * wave.lanes + lane);
    if (item >= threads) break;
    exec |= 1ull << lane;
    const u32 x = item % block[0], y = item / block[0] % block[1], z = item / (block[0] * block[1]);
    wave.vgpr[0][lane] = packed ? x | y << 10 | z << 20 : x;
    if (initial_vgprs > 1) wave.vgpr[1][lane] = y;
    if (initial_vgprs > 2) wave.vgpr[2][lane] = z;
  }
  wave.set_exec(exec);
}

}  // namespace

DispatchMemory make_dispatch(const Program& program, const Kernel& kernel, const LaunchShape& shape,
                             const void* arguments, size_t argument_bytes) {
  DispatchMemory memory;
  const size_t kernarg = std::max<size_t>({kernel.kernarg_bytes, argument_bytes, 4});
  const size_t packet_at = (kernarg + 255) / 256 * 256, queue_at = packet_at + 256;
  memory.bytes.resize(queue_at + kQueueBytes + 256);
  const u64 base = (reinterpret_cast<u64>(memory.bytes.data()) + 255) & ~255ull;
  memory.arguments = base;
  memory.packet = base + packet_at;
  memory.queue = base + queue_at;
  if (argument_bytes) std::memcpy(memory_at(base), arguments, argument_bytes);
  Placer place{memory_at(base)};
  for (const Argument& a : kernel.arguments) {
    if (!a.hidden() || a.offset + a.size > kernarg) continue;
    const u64 value = hidden_value(a.kind, shape, memory.queue);
    std::memcpy(place.base + a.offset, &value, std::min<size_t>(a.size, 8));
  }
  fill_packet(Placer{memory_at(memory.packet)}, kernel, shape, memory.arguments);
  // Loads may fetch more than they use, up to the segment's 16-byte padding.
  memory.regions.push_back({base, base + (kernarg + 15) / 16 * 16, "the kernel arguments", false, false});
  memory.regions.push_back({memory.packet, memory.packet + kPacketBytes, "the dispatch packet", false, false});
  memory.regions.push_back({memory.queue, memory.queue + kQueueBytes, "the queue", false, false});
  const u64 image = reinterpret_cast<u64>(program.image);
  memory.regions.push_back({image, image + program.image_bytes, "the code object", true, false});
  return memory;
}

u32 scratch_per_lane(const Kernel& kernel) {
  const u32 bytes = kernel.scratch_bytes + (kernel.uses_dynamic_stack ? kDynamicStackBytes : 0);
  return (bytes + 3) / 4 * 4;
}

void start_wave(Wave& wave, int id, Workgroup& group, const LaunchShape& shape, const DispatchMemory& memory) {
  const Kernel& kernel = *group.kernel;
  std::memset(wave.vgpr, 0xff, sizeof wave.vgpr);
  std::memset(wave.sgpr, 0xff, sizeof wave.sgpr);
  wave.group = &group;
  wave.target = group.target;
  wave.id = id;
  wave.lanes = kernel.wave_size;
  wave.full_mask = wave.lanes == 64 ? ~0ull : (1ull << wave.lanes) - 1;
  wave.scc = false;
  wave.indexing = false;
  wave.state = WaveState::running;
  wave.pc = group.program->index_of.at(kernel.entry);
  wave.executed = 0;
  wave.barriers_signalled = wave.barriers_passed = 0;
  wave.scratch_bytes_per_lane = scratch_per_lane(kernel);
  std::fill(wave.scratch.begin(), wave.scratch.end(), u8{0xff});
  set_mode(wave, initial_mode(kernel, *wave.target));
  wave.sgpr[kNull] = 0;
  wave.sgpr[kM0] = 0;
  wave.sgpr[kExec + 1] = 0;
  store64(&wave.sgpr[kFlatScratch], reinterpret_cast<u64>(wave.scratch.data()));
  store64(&wave.sgpr[kXnackMask], 0);
  store64(&wave.sgpr[kSharedBase], kSharedAperture);
  store64(&wave.sgpr[kSharedLimit], kSharedAperture + 0xffffffff);
  store64(&wave.sgpr[kPrivateBase], kPrivateAperture);
  store64(&wave.sgpr[kPrivateLimit], kPrivateAperture + 0xffffffff);
  put_user_sgprs(wave, kernel, memory);
  const u32 sgprs = put_system_sgprs(wave, kernel, group.id);
  if (wave.target->family == Family::gfx12) {  // ids are in trap temporaries, whatever the descriptor asks
    for (int i = 0; i < 16; ++i) wave.sgpr[kTtmp0 + i] = 0;
    wave.sgpr[kTtmp0 + 9] = group.id[0];
    wave.sgpr[kTtmp0 + 7] = group.id[1] | group.id[2] << 16;
    wave.sgpr[kTtmp0 + 8] = static_cast<u32>(id) << 25;
  }
  u32 vgprs = 1;
  put_work_items(wave, kernel, shape.block, vgprs);
  if (wave.checker) wave.checker->start(wave, sgprs, vgprs);
}

}  // namespace emu
