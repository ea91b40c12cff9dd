#include "tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dtype.h"
#include "errors.h"
#include "random.h"
#include "table.h"

namespace flashwave::cli {
namespace {

constexpr std::byte kGuard{0xA5};

template <class Function>
void for_each_element(const View& v, Function&& function) {
  for (int64_t i = 0; i < v.shape[0]; ++i) {
    for (int64_t j = 0; j < v.shape[1]; ++j) {
      for (int64_t k = 0; k < v.shape[2]; ++k) {
        const int64_t row = v.offset + i * v.stride[0] + j * v.stride[1] + k * v.stride[2];
        for (int64_t l = 0; l < v.shape[3]; ++l) function(size_t(row + l * v.stride[3]), i, j);
      }
    }
  }
}

// Which (first, row) places of q or k some sequence owns.
std::vector<uint8_t> owned_places(const Geometry& g, TensorId id) {
  const View& v = g.view[id];
  std::vector<uint8_t> owned(size_t(v.shape[0] * v.shape[1]), 0);
  for (int64_t b = 0; b < g.problem.b; ++b) {
    const SequenceShape& s = g.sequences[size_t(b)];
    if (id == kQ) {
      for (int64_t i = 0; i < s.queries; ++i) {
        const auto place = g.query_place(b, i);
        owned[size_t(place.first * v.shape[1] + place.row)] = 1;
      }
    } else {
      for (int64_t row = s.leftpad; row < s.stored; ++row) {
        const auto place = g.key_place(b, row);
        owned[size_t(place.first * v.shape[1] + place.row)] = 1;
      }
    }
  }
  return owned;
}

void fill_random(const Geometry& g, TensorId id, std::vector<float>& buffer) {
  const View& v = g.view[id];
  const fw_dtype type = g.dtype_of(id, g.problem.dtype);
  Random random(mix(g.problem.seed, hash_text(tensor_name(id))));
  const bool by_sequence = id == kQ || id == kK || id == kV;
  const std::vector<uint8_t> owned = by_sequence ? owned_places(g, id) : std::vector<uint8_t>();
  for_each_element(v, [&](size_t at, int64_t first, int64_t row) {
    float value = random.normal();
    if (id == kSlopes) value = 0.25f * std::fabs(value);
    if (by_sequence && !owned[size_t(first * v.shape[1] + row)]) value = std::numeric_limits<float>::quiet_NaN();
    buffer[at] = round_to(value, type);
  });
}

// How programs hide keys who know no -inf: a row that has no other keys is their mean.
void fill_least(const Geometry& g, std::vector<float>& buffer) {
  const View& v = g.view[kBias];
  const fw_dtype type = g.dtype_of(kBias, g.problem.dtype);
  const float least = type == FW_F16 ? -65504.f : type == FW_BF16 ? -0x1.fep127f : -std::numeric_limits<float>::max();
  for (int64_t i = 0; i < v.shape[0]; ++i) {
    for (int64_t j = 0; j < v.shape[1]; ++j) {
      for (int64_t query = 0; query < v.shape[2]; query += 3) {
        const int64_t row = v.offset + i * v.stride[0] + j * v.stride[1] + query * v.stride[2];
        for (int64_t key = 0; key < v.shape[3]; ++key) buffer[size_t(row + key * v.stride[3])] = least;
      }
    }
  }
}

// Results to which others are added: every fifth row has seen nothing yet, and its o is not to be read.
void empty_some_rows(const Geometry& g, HostValues& values) {
  const View &o = g.view[kO], &lse = g.view[kLse];
  int64_t number = 0;
  for (int64_t b = 0; b < o.shape[0]; ++b) {
    for (int64_t i = 0; i < o.shape[1]; ++i) {
      for (int64_t h = 0; h < o.shape[2]; ++h) {
        if (number++ % 5 != 2) continue;
        const int64_t at = o.offset + b * o.stride[0] + i * o.stride[1] + h * o.stride[2];
        for (int64_t d = 0; d < o.shape[3]; ++d) values.buffer[kO][size_t(at + d)] = std::nanf("");
        values.buffer[kLse][size_t(lse.offset + b * lse.stride[0] + i * lse.stride[1] + h * lse.stride[2])] =
            -std::numeric_limits<float>::infinity();
      }
    }
  }
}

void fill_rotation(const Geometry& g, TensorId id, std::vector<float>& buffer) {
  const int64_t half = g.problem.rotary / 2;
  for (int64_t position = 0; position < g.rotary_seqlen; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = double(position) * std::pow(10000.0, -double(i) / double(half));
      const double value = id == kCos ? std::cos(angle) : std::sin(angle);
      buffer[size_t(position * half + i)] = round_to(float(value), g.problem.dtype);
    }
  }
}

}  // namespace

fw_device* open_device(const std::string& name) {
  fw_device* device = nullptr;
  require(fw_device_open(name.c_str(), &device), "device " + name);
  return device;
}

fw_device* open_to_run(const std::string& name) {
  fw_device* device = open_device(name);
  require(fw_device_synchronize(device, nullptr), "device " + name);
  return device;
}

fw_device_info query_device(fw_device* device) {
  fw_device_info info{};
  info.struct_size = sizeof info;
  require(fw_device_query(device, &info), "fw_device_query");
  return info;
}

void require_host_memory(const Geometry& g) {
  double bytes = 0;
  for (const int64_t elements : g.elements) bytes += double(elements) * sizeof(float);
  const double host = double(query_device(open_device("cpu")).memory_bytes);
  if (bytes > host) {
    throw HostMemoryError("its tensors take at least " + human_bytes(bytes) + " of the host's memory, which has " +
                          human_bytes(host));
  }
}

HostValues make_values(const Geometry& g) {
  require_host_memory(g);
  HostValues values;
  for (int i = 0; i < kTensorCount; ++i) {
    const auto id = TensorId(i);
    if (!g.view[id].present || g.is_output(id)) continue;
    if ((id == kO || id == kLse) && !g.problem.accumulate) continue;  // of a backward: they come from a forward
    std::vector<float>& buffer = values.buffer[g.view[id].buffer];
    buffer.resize(size_t(g.elements[g.view[id].buffer]));
    if (id == kCos || id == kSin) {
      fill_rotation(g, id, buffer);
    } else {
      fill_random(g, id, buffer);
      if (id == kBias && g.problem.least_bias) fill_least(g, buffer);
    }
  }
  if (g.problem.accumulate) empty_some_rows(g, values);
  return values;
}

Staged::Staged(fw_device* device, const Geometry& geometry, fw_dtype data_dtype)
    : device_(device), geometry_(geometry), data_dtype_(data_dtype) {
  for (int i = 0; i < kTensorCount; ++i) {
    const auto id = TensorId(i);
    if (!geometry.view[id].present || geometry.view[id].buffer != id) continue;
    const size_t bytes = size_t(geometry.elements[id]) * dtype_size(geometry.dtype_of(id, data_dtype));
    allocate(buffers_[id], bytes, tensor_name(id));
    poison(id);
  }
  fill_structs();
}

Staged::~Staged() {
  for (Buffer& buffer : buffers_) {
    if (buffer.base) fw_device_free(device_, buffer.base);
  }
  lend_workspace(0);
  for (void* p : arrays_) fw_device_free(device_, p);
}

void Staged::allocate(Buffer& buffer, size_t bytes, const std::string& what) {
  void* base = nullptr;
  require(fw_device_alloc(device_, bytes + 2 * kGuardBytes, &base), "memory for " + what);
  buffer.base = static_cast<char*>(base), buffer.bytes = bytes;
  const std::vector<std::byte> guard(kGuardBytes, kGuard);
  for (char* at : {buffer.base, buffer.base + kGuardBytes + bytes}) {
    require(fw_device_copy(device_, at, guard.data(), kGuardBytes, FW_HOST_TO_DEVICE, nullptr), "copy to the device");
  }
}

bool Staged::guards_changed(const Buffer& buffer) const {
  std::vector<std::byte> guards(2 * kGuardBytes);
  require(fw_device_copy(device_, guards.data(), buffer.base, kGuardBytes, FW_DEVICE_TO_HOST, nullptr), "copy");
  require(fw_device_copy(device_, guards.data() + kGuardBytes, buffer.base + kGuardBytes + buffer.bytes, kGuardBytes,
                         FW_DEVICE_TO_HOST, nullptr),
          "copy");
  require(fw_device_synchronize(device_, nullptr), "wait for the device");
  return std::any_of(guards.begin(), guards.end(), [](std::byte b) { return b != kGuard; });
}

void Staged::lend_workspace(size_t bytes) {
  if (workspace_.base) fw_device_free(device_, workspace_.base);
  workspace_ = {};
  if (bytes == 0) return;
  allocate(workspace_, bytes, "the workspace");
  const std::vector<std::byte> ones(bytes, std::byte{0xFF});
  require(fw_device_copy(device_, workspace(), ones.data(), bytes, FW_HOST_TO_DEVICE, nullptr), "copy to the device");
  require(fw_device_synchronize(device_, nullptr), "wait for the device");
}

void Staged::poison(TensorId id) {
  const fw_dtype type = geometry_.dtype_of(id, data_dtype_);
  const size_t count = size_t(geometry_.elements[id]);
  std::vector<std::byte> bytes(count * dtype_size(type));
  fill_poison(count, type, bytes.data());
  upload_raw(id, bytes);
}

void Staged::upload(const HostValues& values) {
  for (int i = 0; i < kTensorCount; ++i) {
    const auto id = TensorId(i);
    if (!buffers_[id].base) continue;
    if (values.buffer[id].empty()) {
      poison(id);
      continue;
    }
    std::vector<std::byte> bytes(buffers_[id].bytes);
    store(values.buffer[id].data(), values.buffer[id].size(), geometry_.dtype_of(id, data_dtype_), bytes.data());
    upload_raw(id, bytes);
  }
}

void Staged::upload_raw(TensorId id, const std::vector<std::byte>& bytes) {
  Buffer& buffer = buffers_[id];
  if (bytes.size() != buffer.bytes) throw std::logic_error("upload of a different size");
  if (!bytes.empty()) {
    require(fw_device_copy(device_, buffer.base + kGuardBytes, bytes.data(), bytes.size(), FW_HOST_TO_DEVICE, nullptr),
            "copy to the device");
  }
  require(fw_device_synchronize(device_, nullptr), "wait for the device");
  if (!geometry_.is_output(id)) buffer.uploaded = bytes;
}

std::vector<std::byte> Staged::download_raw(TensorId id) const {
  const Buffer& buffer = buffers_[id];
  std::vector<std::byte> bytes(buffer.bytes);
  if (!bytes.empty()) {
    require(fw_device_copy(device_, bytes.data(), buffer.base + kGuardBytes, bytes.size(), FW_DEVICE_TO_HOST, nullptr),
            "copy from the device");
  }
  require(fw_device_synchronize(device_, nullptr), "wait for the device");
  return bytes;
}

Readback Staged::read(TensorId id) const {
  const View& v = geometry_.view[id];
  const fw_dtype type = geometry_.dtype_of(id, data_dtype_);
  const std::vector<std::byte> bytes = download_raw(v.buffer);
  std::vector<float> values(size_t(geometry_.elements[v.buffer]));
  load(bytes.data(), values.size(), type, values.data());
  Readback out;
  out.value.reserve(size_t(v.count()));
  out.untouched.reserve(size_t(v.count()));
  for_each_element(v, [&](size_t at, int64_t, int64_t) {
    out.value.push_back(values[at]);
    out.untouched.push_back(is_poison(bytes.data(), at, type));
  });
  return out;
}

std::string Staged::broken_promise() const {
  if (workspace_.base && guards_changed(workspace_)) return "bytes outside the workspace were written";
  for (int i = 0; i < kTensorCount; ++i) {
    const auto id = TensorId(i);
    const Buffer& buffer = buffers_[id];
    if (!buffer.base) continue;
    if (guards_changed(buffer)) return std::string("bytes outside the buffer of ") + tensor_name(id) + " were written";
    if (geometry_.is_output(id)) continue;
    bool updated = false;
    for (int t = 0; t < kTensorCount; ++t) {
      updated |= geometry_.view[size_t(t)].present && geometry_.view[size_t(t)].buffer == id &&
                 geometry_.is_updated(TensorId(t));
    }
    if (!updated && download_raw(id) != buffer.uploaded) {
      return std::string("the input ") + tensor_name(id) + " was changed";
    }
  }
  return "";
}

template <class T>
const T* Staged::stage_array(const std::vector<T>& values) {
  if (values.empty()) return nullptr;
  void* p = nullptr;
  require(fw_device_alloc(device_, values.size() * sizeof(T), &p), "memory for an array");
  arrays_.push_back(p);
  require(fw_device_copy(device_, p, values.data(), values.size() * sizeof(T), FW_HOST_TO_DEVICE, nullptr),
          "copy to the device");
  return static_cast<const T*>(p);
}

void Staged::fill_structs() {
  const auto address = [](void* context, TensorId id) -> void* {
    const auto* self = static_cast<const Staged*>(context);
    const View& v = self->geometry_.view[id];
    return self->buffers_[v.buffer].base + kGuardBytes +
           size_t(v.offset) * dtype_size(self->geometry_.dtype_of(id, self->data_dtype_));
  };
  describe_problem(geometry_, data_dtype_, address, this, &attention_, &gradients_);
  attention_.cu_seqlens_q = stage_array(geometry_.cu_seqlens_q);
  attention_.cu_seqlens_k = stage_array(geometry_.cu_seqlens_k);
  attention_.seqused_k = stage_array(geometry_.seqused_k);
  attention_.leftpad_k = stage_array(geometry_.leftpad_k);
  attention_.cache_batch_idx = stage_array(geometry_.cache_batch_idx);
  attention_.block_table = stage_array(geometry_.block_table);
  if (geometry_.problem.dropout_state) {
    attention_.dropout_state = stage_array<uint64_t>({attention_.dropout_seed, attention_.dropout_offset});
    attention_.dropout_seed = ~attention_.dropout_seed;  // not to be read
  }
}

void describe_problem(const Geometry& g, fw_dtype data_dtype, AddressOf address, void* context, fw_attention* a,
                      fw_gradients* grad) {
  const Case& c = g.problem;
  const auto tensor = [&](TensorId id) {
    fw_tensor t{};
    const View& v = g.view[id];
    if (!v.present) return t;
    t.data = address(context, id);
    for (size_t i = 0; i < 4; ++i) t.stride[i] = v.stride[i];
    t.dtype = g.dtype_of(id, data_dtype);
    return t;
  };
  const auto floats = [&](TensorId id) {
    return g.view[id].present ? static_cast<float*>(address(context, id)) : nullptr;
  };
  const auto index = [](const std::vector<int32_t>& values) { return values.empty() ? nullptr : values.data(); };
  fw_attention_init(a, sizeof *a);
  a->flags = (c.causal ? FW_CAUSAL : 0u) | (c.deterministic ? FW_DETERMINISTIC : 0u) |
             (c.interleaved ? FW_ROTARY_INTERLEAVED : 0u) | (c.fast_rounding ? FW_FAST_ROUNDING : 0u) |
             (c.accumulate ? FW_ACCUMULATE : 0u) | (c.placed ? FW_POSITIONS : 0u) | (c.fill ? FW_FILL_UNUSED : 0u);
  a->batch = c.b;
  a->seqlen_q = c.sq;
  a->seqlen_k = c.sk;
  a->heads_q = c.hq;
  a->heads_k = c.hk;
  a->dim_qk = c.dqk;
  a->dim_v = c.dv;
  a->total_q = g.total_q;
  a->total_k = g.total_k;
  a->batch_k = g.batch_k;
  a->q = tensor(kQ);
  a->k = tensor(kK);
  a->v = tensor(kV);
  a->o = tensor(kO);
  a->lse = tensor(kLse);
  a->cu_seqlens_q = index(g.cu_seqlens_q);
  a->cu_seqlens_k = index(g.cu_seqlens_k);
  a->seqused_k = index(g.seqused_k);
  a->leftpad_k = index(g.leftpad_k);
  a->cache_batch_idx = index(g.cache_batch_idx);
  a->block_table = index(g.block_table);
  a->block_table_stride = g.block_table_stride;
  a->page_size = c.page;
  a->seqlen_new = c.append;
  a->k_new = tensor(kKNew);
  a->v_new = tensor(kVNew);
  if (c.rotary) {
    a->rotary_cos = tensor(kCos);
    a->rotary_sin = tensor(kSin);
    for (fw_tensor* t : {&a->rotary_cos, &a->rotary_sin}) {
      t->stride[0] = c.rotary / 2;
      t->stride[1] = 1;
      t->stride[2] = t->stride[3] = 0;
    }
    a->rotary_seqlen = g.rotary_seqlen;
    a->rotary_dim = c.rotary;
  }
  a->window_left = c.window_left;
  a->window_right = c.window_right;
  a->softmax_scale = c.scale;
  a->softcap = c.softcap;
  a->alibi_slopes = floats(kSlopes);
  a->alibi_batch_stride = c.alibi == Alibi::kPerBatchHead ? c.hq : 0;
  a->sinks = floats(kSinks);
  a->bias = tensor(kBias);
  a->dropout_p = c.dropout;
  a->num_splits = int32_t(c.splits);
  if (c.dropout > 0) {
    a->dropout_seed = mix(c.seed, hash_text("dropout seed"));
    a->dropout_offset = mix(c.seed, hash_text("dropout offset")) >> 24;
  }
  a->probs = tensor(kProbs);
  a->position_q = c.position_q, a->position_k = c.position_k;
  a->dropout_first = c.dropout_first, a->dropout_heads = c.dropout_heads;

  fw_gradients_init(grad, sizeof *grad);
  if (!c.backward) return;
  grad->d_o = tensor(kDO);
  grad->d_lse = tensor(kDLse);
  grad->dq = tensor(kDQ);
  grad->dk = tensor(kDK);
  grad->dv = tensor(kDV);
  grad->d_bias = tensor(kDBias);
  grad->d_sinks = floats(kDSinks);
  grad->d_slopes = floats(kDSlopes);
}

namespace {

fw_exec make_exec(const RunOptions& options) {
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  exec.num_threads = int32_t(options.threads);
  exec.force_kernel = options.kernel.empty() ? nullptr : options.kernel.c_str();
  return exec;
}

}  // namespace

size_t plan_problem(const Staged& staged, bool backward, const RunOptions& options) {
  const fw_exec exec = make_exec(options);
  size_t workspace;
  require(fw_workspace_size(staged.device(), &staged.attention(), backward ? &staged.gradients() : nullptr, &exec,
                            &workspace),
          backward ? "fw_backward" : "fw_forward");
  return workspace;
}

fw_report run_problem(const Staged& staged, bool backward, const RunOptions& options) {
  fw_report report{};
  report.struct_size = sizeof report;
  fw_exec exec = make_exec(options);
  exec.report = &report;
  exec.workspace = staged.workspace(), exec.workspace_size = staged.workspace_bytes();
  const std::string what = backward ? "fw_backward" : "fw_forward";
  require(backward ? fw_backward(staged.device(), &staged.attention(), &staged.gradients(), &exec)
                   : fw_forward(staged.device(), &staged.attention(), &exec),
          what);
  require(fw_device_synchronize(staged.device(), nullptr), what);
  return report;
}

}  // namespace flashwave::cli
