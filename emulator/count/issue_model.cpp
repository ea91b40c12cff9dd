#include "count/issue_model.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <stdexcept>
#include <string_view>

#include "check/register_use.h"
#include "core/opcode.h"

namespace emu {
namespace {

// Per SIMD and step at most one instruction leaves through each port, and one of each wave.
enum Port { kVectorPort, kScalarPort, kLdsPort, kVmemPort, kOtherPort, kPorts };

Port port_of(Class cls) {
  switch (cls) {
    case Class::vector:
    case Class::transcendental:
    case Class::matrix:
      return kVectorPort;
    case Class::scalar:
    case Class::scalar_load:
      return kScalarPort;
    case Class::lds_read:
    case Class::lds_write:
    case Class::lds_atomic:
      return kLdsPort;
    case Class::vmem_load:
    case Class::vmem_store:
    case Class::vmem_atomic:
      return kVmemPort;
    default:
      return kOtherPort;
  }
}

// Times are in clocks. A step is the four clocks in which a CDNA SIMD issues a wave64 instruction, or one RDNA clock.
struct Machine {
  bool cdna;
  int simds;
  double step;
  double branch, matrix_latency;
};

struct ModelWave {
  const std::vector<u32>* trace = nullptr;
  size_t next = 0;
  double ready = 0;
  int priority = 0;
  bool at_barrier = false;
  std::vector<double> register_ready = std::vector<double>(kScalarBase + kScalarRegisters, 0.0);
  std::vector<bool> matrix_result = std::vector<bool>(kScalarBase + kScalarRegisters, false);
  std::deque<double> loads, lds;  // when each outstanding one returns

  bool ended() const { return next >= trace->size(); }
};

struct Totals {
  double matrix = 0, vector = 0, lds = 0;
};

class Model {
 public:
  Model(const Program& program, const LaunchResult& result, const IssueModelOptions& options)
      : program_(program), result_(result), options_(options), table_(register_use_of(program)) {
    const Target& target = *program.target;
    const bool cdna = !target.is_rdna();
    machine_ = {cdna, static_cast<int>(target.simds_per_cu), cdna ? 4.0 : 1.0,
                options.branch > 0 ? options.branch
                : cdna             ? 16.0
                                   : 8.0,
                options.matrix_latency > 0 ? options.matrix_latency
                : cdna                     ? 12.0
                                           : 8.0};
    per_group_ = result.trace.size();
    waves_.resize(per_group_ * static_cast<size_t>(std::max(1, options.workgroups)));
    for (size_t i = 0; i < waves_.size(); ++i) {
      waves_[i].trace = &result.trace[i % per_group_];
      waves_[i].ready = static_cast<double>(i / per_group_) * options.skew;
    }
    simds_.resize(static_cast<size_t>(machine_.simds));
  }

  IssueModelResult run() {
    const size_t length = result_.trace[0].size();
    const size_t from = static_cast<size_t>(options_.from * static_cast<double>(length));
    const size_t to = static_cast<size_t>(options_.to * static_cast<double>(length));
    constexpr double kSteps = 5e7;
    double begin = -1, end = 0;
    Totals at_begin, at_end;
    for (double step = 0; step < kSteps; ++step) {
      now_ = step * machine_.step;
      for (size_t simd = 0; simd < simds_.size(); ++simd) issue_on(simd, step);
      const ModelWave& first = waves_[0];
      if (begin < 0 && first.next >= from) {
        begin = now_;
        at_begin = totals_;
      }
      if (first.next <= to) {
        end = now_;
        at_end = totals_;
      }
      if (first.next >= to || first.ended()) break;
      release_barriers();
    }
    IssueModelResult r;
    r.clocks = std::max(end - begin, machine_.step);
    r.matrix_busy = (at_end.matrix - at_begin.matrix) / machine_.simds / r.clocks;
    r.vector_busy = (at_end.vector - at_begin.vector) / machine_.simds / r.clocks;
    r.lds_busy = (at_end.lds - at_begin.lds) / r.clocks;
    return r;
  }

 private:
  struct Simd {
    double vector_free = 0, matrix_free = 0, transcendental_free = 0;
  };

  std::vector<size_t> order_on(size_t simd, double step) const {
    std::vector<size_t> order;
    for (size_t i = simd; i < waves_.size(); i += simds_.size()) order.push_back(i);
    if (machine_.cdna) {
      std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
        return waves_[a].priority != waves_[b].priority ? waves_[a].priority > waves_[b].priority : a < b;
      });
      const bool odd = static_cast<u64>(step) & 1;
      if (order.size() == 2 && waves_[order[0]].priority == waves_[order[1]].priority && odd) {
        std::swap(order[0], order[1]);
      }
    } else if (options_.rotate && !order.empty()) {
      std::rotate(order.begin(), order.begin() + static_cast<long>(static_cast<u64>(step / 8) % order.size()),
                  order.end());
    }
    return order;
  }

  void issue_on(size_t simd, double step) {
    bool used[kPorts] = {};
    for (size_t i : order_on(simd, step)) {
      ModelWave& wave = waves_[i];
      if (wave.ended() || wave.at_barrier || wave.ready > now_) continue;
      const Instruction& in = program_.code[(*wave.trace)[wave.next]];
      const Port port = port_of(in.cls);
      const bool exclusive = machine_.cdna || port != kOtherPort;
      if (used[port] && exclusive) continue;
      if (!try_issue(wave, in, simds_[simd])) continue;
      used[port] = true;
      ++wave.next;
    }
  }

  static bool arrived(std::deque<double>& queue, u32 allowed, double now) {
    while (!queue.empty() && queue.front() <= now) queue.pop_front();
    return allowed == kNoWait || queue.size() <= allowed;
  }

  bool try_issue(ModelWave& wave, const Instruction& in, Simd& simd) {
    const RegisterUse& use = table_.use[in.index];
    if (in.cls == Class::wait) {
      const WaitAmounts amounts = wait_amounts(program_.target->family, use.wait, in.word[0] & 0xffff);
      if (!arrived(wave.loads, amounts.load, now_)) return false;
      if (!arrived(wave.lds, std::min(amounts.lds, amounts.scalar), now_)) return false;
      wave.ready = now_ + machine_.step;
      return true;
    }
    if (!registers_ready(wave, in, use)) return false;
    double latency = machine_.cdna ? machine_.step : 2;
    if (port_of(in.cls) == kVectorPort) {
      latency = issue_vector(in, simd);
      if (latency < 0) return false;
    }
    issue_memory(wave, in);
    wave.ready = now_ + machine_.step;
    if (in.cls == Class::branch) wave.ready = now_ + machine_.branch;
    if (in.cls == Class::barrier && std::string_view(in.opcode->name) != "s_barrier_signal") wave.at_barrier = true;
    if (in.cls == Class::other) pause(wave, in);
    // Results of the scalar unit are there for the next instruction on CDNA.
    const bool waits = port_of(in.cls) == kVectorPort || (!machine_.cdna && port_of(in.cls) == kScalarPort);
    if (waits) {
      const RegisterRange* writes = use.write_range();
      for (int w = 0; w < use.write_ranges; ++w) {
        for (int r = writes[w].first; r < writes[w].first + writes[w].count; ++r) {
          wave.register_ready[r] = now_ + latency;
          wave.matrix_result[r] = in.cls == Class::matrix;
        }
      }
    }
    return true;
  }

  bool registers_ready(const ModelWave& wave, const Instruction& in, const RegisterUse& use) const {
    const RegisterRange* ranges = use.read_range();
    const int count = use.read_ranges + use.write_ranges;
    for (int i = 0; i < count; ++i) {
      const bool chained = in.cls == Class::matrix && (i == use.accumulator || i >= use.read_ranges);
      for (int r = ranges[i].first; r < ranges[i].first + ranges[i].count; ++r) {
        const double early = chained && wave.matrix_result[r] ? machine_.matrix_latency : 0;
        if (wave.register_ready[r] - early > now_) return false;
      }
    }
    return true;
  }

  // Returns when the result is ready, counted from now; negative if it cannot issue.
  double issue_vector(const Instruction& in, Simd& simd) {
    if (in.cls == Class::matrix) {
      if (simd.matrix_free > now_ || simd.vector_free > now_) return -1;
      const double clocks = in.cycles;
      simd.matrix_free = now_ + clocks;
      if (!machine_.cdna) simd.vector_free = now_ + machine_.step;
      totals_.matrix += clocks;
      return clocks + machine_.matrix_latency;
    }
    if (simd.vector_free > now_) return -1;
    if (machine_.cdna) {
      const bool packed =
          std::string_view(in.opcode->name).starts_with("v_pk_") && std::string_view(in.opcode->name).ends_with("_f32");
      if (options_.packed_f32_waits && packed && simd.matrix_free > now_) return -1;
      simd.vector_free = now_ + in.cycles;
      totals_.vector += in.cycles;
      return in.cycles;
    }
    if (!options_.overlap && simd.matrix_free > now_) return -1;
    const bool slow = in.cls == Class::transcendental;
    if (slow && simd.transcendental_free > now_) return -1;
    if (slow) simd.transcendental_free = now_ + 4;
    simd.vector_free = now_ + machine_.step;
    totals_.vector += 1;
    return slow ? options_.transcendental_latency : options_.vector_latency;
  }

  static void returns_at(std::deque<double>& queue, double time) {
    queue.push_back(queue.empty() ? time : std::max(time, queue.back()));
  }

  void issue_memory(ModelWave& wave, const Instruction& in) {
    const Port port = port_of(in.cls);
    if (port == kLdsPort) {
      const u64 times = result_.executed[in.index];
      double clocks =
          times ? static_cast<double>(result_.accesses->lds_cycles[in.index]) / static_cast<double>(times) : 0;
      if (clocks < 1) clocks = 2;  // cross-lane operations touch no memory but pass through
      lds_free_ = std::max(lds_free_, now_) + clocks;
      totals_.lds += clocks;
      returns_at(wave.lds, lds_free_ + options_.lds_latency);
    } else if (port == kVmemPort) {
      vmem_free_ = std::max(vmem_free_, now_) + vmem_bytes(in) / 64;
      const bool store = in.cls == Class::vmem_store || (in.cls == Class::vmem_atomic && in.dest_count == 0);
      if (machine_.cdna || !store) returns_at(wave.loads, vmem_free_ + options_.vmem_latency);
    } else if (in.cls == Class::scalar_load) {
      returns_at(wave.lds, now_ + options_.scalar_load_latency);
    }
  }

  double vmem_bytes(const Instruction& in) const {
    const bool buffer = std::string_view(in.opcode->name).starts_with("buffer_");
    const int data = in.dest_count ? 0 : buffer ? 0 : 1;
    const int dwords = in.to_lds || data >= in.operand_count ? 1 : in.operand[data].width;
    return static_cast<double>(program_.target->wave_size) * 4 * dwords;
  }

  void pause(ModelWave& wave, const Instruction& in) {
    const std::string_view name = in.opcode->name;
    if (name == "s_nop") wave.ready = now_ + machine_.step * (1 + (in.simm16 & 15));
    if (name == "s_setprio") wave.priority = in.simm16 & 3;
    if (name == "s_sleep") wave.ready = now_ + 64.0 * (in.simm16 & 127);
  }

  void release_barriers() {
    for (size_t group = 0; group < waves_.size(); group += per_group_) {
      bool all = true, any = false;
      for (size_t i = group; i < group + per_group_; ++i) {
        any |= waves_[i].at_barrier;
        all &= waves_[i].at_barrier || waves_[i].ended();
      }
      if (!any || !all) continue;
      for (size_t i = group; i < group + per_group_; ++i) {
        if (!machine_.cdna && waves_[i].at_barrier) waves_[i].ready = now_ + 8;
        waves_[i].at_barrier = false;
      }
    }
  }

  const Program& program_;
  const LaunchResult& result_;
  const IssueModelOptions& options_;
  const RegisterUseTable& table_;
  Machine machine_{};
  size_t per_group_ = 0;
  std::vector<ModelWave> waves_;
  std::vector<Simd> simds_;
  double now_ = 0, lds_free_ = 0, vmem_free_ = 0;
  Totals totals_;
};

}  // namespace

std::string IssueModelResult::text() const {
  char line[160];
  std::snprintf(line, sizeof line,
                "model, for ranking only: matrix units busy %.1f%%, vector %.1f%%, LDS %.1f%% of %.0f clocks",
                100 * matrix_busy, 100 * vector_busy, 100 * lds_busy, clocks);
  return line;
}

IssueModelResult model_issue(const Program& program, const LaunchResult& result, const IssueModelOptions& options) {
  if (result.trace.empty() || result.trace[0].empty() || !result.accesses) {
    throw std::invalid_argument("the issue model needs a launch that was counted and traced");
  }
  return Model(program, result, options).run();
}

}  // namespace emu
