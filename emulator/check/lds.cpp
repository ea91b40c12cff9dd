// Races, missing waits and uninitialised bytes in LDS.
//
// State is kept per dword, and per byte for dwords that were ever accessed in part.
#include <algorithm>
#include <array>
#include <cstring>

#include "check/checker.h"
#include "check/lds_cells.h"
#include "check/pending_reads.h"

namespace emu {
namespace {

constexpr u32 kAll = ~0u;

// Which writes of a wave another one may read: those before a barrier both know of, and waited for by then.
struct Limit {
  u32 signals = 0;   // fewer than these
  u32 sequence = 0;  // at most this
  bool allows(const Write& w) const { return w.signals() < signals && w.sequence() <= sequence; }
};

// What a wave had waited for when it signalled its last barriers.
struct SignalHistory {
  static constexpr u32 kKept = 8;
  u32 signals = 0;
  u32 lds_done[kKept] = {}, vmem_done[kKept] = {};
  // For this wave as the reader, by writing wave and whether LDS instructions or loads wrote; right for `limits_for`
  // barriers passed.
  u32 limits_for = kAll;
  std::vector<Limit> limits;
};

// A plain read that no barrier orders with another wave's atomic is no mistake if the reader's own atomic follows: a
// loop around compare-and-swap starts so. Kept until that atomic, or the reader's next barrier or end, decides.
struct Suspicion {
  int reader = 0;
  u32 dword = 0;
  const Wave* wave = nullptr;  // who to name
  const Instruction* at = nullptr;
  int lane = 0;
  const char* rule = nullptr;
  int other = 0;
};

// Waves that write the same bytes to the same place disturb nobody, and compilers let them when data is replicated. So
// a write that no barrier orders after another wave's is kept until it has been executed and its effect can be seen.
struct Overwrite {
  u32 address = 0, bytes = 0;
  u32 old = 0;
  int lane = 0, other = 0;
};

}  // namespace

struct LdsChecker::State {
  const CheckOptions& options;
  std::vector<Cell> cells;  // of each dword
  std::vector<std::array<Cell, 4>> split;
  std::vector<u64> free_split;
  std::vector<SignalHistory> history;  // of each wave
  std::vector<u32> barrier_at;         // instruction at which signal number n was first given, by n % kKept
  std::vector<u32> read_sequence;      // strict mode: of the last read of each dword by each wave
  std::vector<ReadHistory> reads;      // of each wave, in programs that load straight to LDS
  std::vector<Suspicion> suspicions;
  std::vector<Overwrite> overwrites;  // of one instruction: overwriter, overwriting, at time overwritten_at
  const Wave* overwriter = nullptr;
  const Instruction* overwriting = nullptr;
  u64 overwritten_at = 0;

  // The access in progress.
  Wave* wave = nullptr;
  const Instruction* at = nullptr;
  Write mine;
  u32 passed = 0, signals = 0, vmem_done = 0, bit = 0;
  bool reported = false;
  bool strict = false;
  const Limit* limits = nullptr;

  State(const CheckOptions& o, size_t bytes, int waves, bool loads_to_lds)
      : options(o),
        cells((bytes + 3) / 4),
        history(static_cast<size_t>(waves)),
        barrier_at(SignalHistory::kKept, kAll),
        read_sequence(o.strict_write_after_read ? (bytes + 3) / 4 * static_cast<size_t>(waves) : 0),
        reads(loads_to_lds ? static_cast<size_t>(waves) : 0),
        strict(o.strict_write_after_read) {}

  u32 done_at_signal(int other, u32 number, bool vmem) const {
    const SignalHistory& h = history[static_cast<size_t>(other)];
    if (number > h.signals) return kAll;  // the other wave has ended: the barrier did not wait for it
    return (vmem ? h.vmem_done : h.lds_done)[number % SignalHistory::kKept];
  }

  static size_t limit_index(const Write& w) { return static_cast<size_t>(w.wave()) * 2 + w.from_memory(); }

  // Others' limits change only when the wave passes a barrier; its own loads may have been waited for since.
  void update_limits() {
    SignalHistory& h = history[static_cast<size_t>(wave->id)];
    if (h.limits_for != passed) {
      h.limits_for = passed;
      h.limits.assign(history.size() * 2, Limit{});
      for (size_t other = 0; other < history.size(); ++other) {
        h.limits[other * 2] = {passed, done_at_signal(static_cast<int>(other), passed, false)};
        h.limits[other * 2 + 1] = {passed, done_at_signal(static_cast<int>(other), passed, true)};
      }
    }
    Limit* own = &h.limits[static_cast<size_t>(wave->id) * 2];
    own[0] = {kAll, kAll};
    own[1] = {kAll, vmem_done};
    limits = h.limits.data();
  }

  // The usual case of an access that is in order, in few instructions. False: look closely.
  bool read_in_order(Cell& cell) const {
    const Write& w = cell.write;
    if (!w.valid() || !limits[limit_index(w)].allows(w) || cell.reader_signals > signals || strict) return false;
    cell.readers = cell.reader_signals == signals ? cell.readers | bit : bit;
    cell.reader_signals = signals;
    return true;
  }
  bool may_overwrite(const Write& w) const {
    const Limit& limit = limits[limit_index(w)];
    return w.signals() < limit.signals && !(w.from_memory() && w.sequence() > limit.sequence);
  }
  bool write_in_order(Cell& cell) const {
    const Write& w = cell.write;
    if (w.split() || strict || ((cell.readers & ~bit) && cell.reader_signals >= passed)) return false;
    if (w.valid() && !may_overwrite(w)) return false;
    cell = {mine, 0, signals};
    return true;
  }

  template <AccessKind kind>
  bool in_order(Cell& cell) const {
    if constexpr (kind == AccessKind::read) return read_in_order(cell);
    if constexpr (kind == AccessKind::write) return write_in_order(cell);
    return false;
  }

  void report(Check check, const char* rule, u32 address, int lane) {
    if (reported || !options.on(check)) return;
    reported = true;
    wave->group->log->add_at(check, *wave, *at, rule, lane, address);
  }
  void report_other(const char* rule, int other, u32 address, int lane) {
    if (reported || !options.on(Check::lds_race)) return;
    reported = true;
    wave->group->log->add_at(Check::lds_race, *wave, *at, rule + std::string(" of wave ") + std::to_string(other), lane,
                             address);
  }

  void suspect(int reader, const char* rule, int other, u32 address, int lane) {
    if (reported || !options.on(Check::lds_race)) return;
    reported = true;
    constexpr size_t kMost = 256;  // the first ones tell enough
    if (suspicions.size() < kMost) suspicions.push_back({reader, address / 4, wave, at, lane, rule, other});
  }
  // The reader's atomic on the dword came after all.
  void clear_suspicions(u32 address) {
    std::erase_if(suspicions, [&](const Suspicion& s) { return s.reader == wave->id && s.dword == address / 4; });
  }
  void report_suspicions(int reader) {
    for (const Suspicion& s : suspicions) {
      if (reader >= 0 && s.reader != reader) continue;
      s.wave->group->log->add_at(Check::lds_race, *s.wave, *s.at,
                                 s.rule + std::string(" of wave ") + std::to_string(s.other), s.lane, s.dword * 4);
    }
    std::erase_if(suspicions, [&](const Suspicion& s) { return reader < 0 || s.reader == reader; });
  }

  void check_read(const Write& w, u32 address, int lane) {
    if (!w.valid()) return report(Check::uninitialised, "LDS read before it was written", address, lane);
    if (w.wave() == wave->id) {
      if (w.from_memory() && w.sequence() > vmem_done) {
        return report(Check::wait, "LDS read before the direct-to-LDS load was waited for", address, lane);
      }
    } else if (!(mine.atomic() && w.atomic())) {
      if (w.signals() >= passed && w.atomic()) {
        return suspect(wave->id, "LDS read, without a barrier between, after the atomic", w.wave(), address, lane);
      }
      if (w.signals() >= passed) {
        return report_other("LDS read, without a barrier between, after the write", w.wave(), address, lane);
      }
      if (w.sequence() > done_at_signal(w.wave(), passed, w.from_memory())) {
        return report_other(w.from_memory() ? "LDS read after a barrier which came before vmcnt waited for the load"
                                            : "LDS read after a barrier which came before a wait for the write",
                            w.wave(), address, lane);
      }
    }
  }

  void keep_overwrite(u32 address, u32 bytes, int lane, int other) {
    if (!options.on(Check::lds_race)) return;
    overwriter = wave;
    overwriting = at;
    overwritten_at = wave->executed;
    Overwrite kept{address, bytes, 0, lane, other};
    std::memcpy(&kept.old, wave->group->lds.data() + address, bytes);
    overwrites.push_back(kept);
  }
  // Once the instruction that wrote is over. An instruction may access LDS more than once.
  void report_overwrites(const Wave* now) {
    if (overwrites.empty() || (now == overwriter && now->executed == overwritten_at)) return;
    for (const Overwrite& o : overwrites) {
      if (std::memcmp(&o.old, overwriter->group->lds.data() + o.address, o.bytes) == 0) continue;
      overwriter->group->log->add_at(
          Check::lds_race, *overwriter, *overwriting,
          "LDS written, without a barrier between, after the write of wave " + std::to_string(o.other), o.lane,
          o.address);
      break;
    }
    overwrites.clear();
  }

  void check_write(const Cell& cell, u32 address, u32 bytes, int lane) {
    const Write& w = cell.write;
    if (w.valid()) {
      if (w.wave() == wave->id) {
        if (w.from_memory() && !mine.from_memory() && w.sequence() > vmem_done) {
          report(Check::wait, "LDS written before the direct-to-LDS load was waited for", address, lane);
        }
      } else if (!(mine.atomic() && w.atomic())) {
        if (w.signals() >= passed && (mine.from_memory() || mine.atomic() || w.from_memory())) {
          report_other("LDS written, without a barrier between, after the write", w.wave(), address, lane);
        } else if (w.signals() >= passed) {
          keep_overwrite(address, bytes, lane, w.wave());
        } else if (w.from_memory() && w.sequence() > done_at_signal(w.wave(), passed, true)) {
          report_other("LDS written after a barrier which came before vmcnt waited for the load", w.wave(), address,
                       lane);
        }
      }
    }
    const u32 others = cell.readers & ~bit;
    if (!others) return;
    const int reader = __builtin_ctz(others);
    if (cell.reader_signals >= passed) {
      constexpr const char* kRule = "LDS written, without a barrier between, after the read";
      if (mine.atomic()) return suspect(reader, kRule, reader, address, lane);
      report_other(kRule, reader, address, lane);
    } else if (strict) {
      for (u32 left = others; left; left &= left - 1) {
        const int other = __builtin_ctz(left);
        if (last_read(address, other) <= done_at_signal(other, passed, false)) continue;
        return report_other("LDS written after a barrier which came before a wait for the read", other, address, lane);
      }
    }
  }

  void keep_read(const u32* address, u64 lanes, u32 bytes) {
    ReadHistory& latest = reads[static_cast<size_t>(wave->id)];
    PendingRead& read = latest.read[latest.count++ % ReadHistory::kKept];
    read.sequence = mine.sequence();
    read.signals = signals;
    const LdsRow row(address, lanes, bytes, *wave);
    read.bytes = bytes;
    read.lanes = lanes;
    read.first = row.first;
    read.end = row.end;
    std::memcpy(read.address, address, static_cast<size_t>(wave->lanes) * sizeof *address);
  }

  // A direct-to-LDS load over bytes whose read had not been waited for: by this wave now, by another before the barrier
  // that orders the two. Without such a barrier it is a race, which check_write sees.
  void check_pending_reads(const u32* address, u64 lanes, u32 bytes) {
    const LdsRow row(address, lanes, bytes, *wave);
    for (size_t reader = 0; reader < reads.size(); ++reader) {
      const bool own = reader == static_cast<size_t>(wave->id);
      const u32 done = own ? wave->checker->lds_done() : done_at_signal(static_cast<int>(reader), passed, false);
      const ReadHistory& latest = reads[reader];
      const u32 kept = std::min(latest.count, ReadHistory::kKept);
      for (u32 i = 1; i <= kept; ++i) {
        const PendingRead& read = latest.read[(latest.count - i) % ReadHistory::kKept];
        if (read.sequence <= done) break;
        if ((!own && read.signals >= passed) || !read.overlaps(row)) continue;
        const int lane = __builtin_ctzll(lanes);
        if (own) {
          report(Check::wait, "LDS overwritten by a direct-to-LDS load before the read of it was waited for",
                 address[lane], lane);
        } else {
          report_other("LDS overwritten by a direct-to-LDS load after a barrier which came before a wait for the read",
                       static_cast<int>(reader), address[lane], lane);
        }
        return;
      }
    }
  }

  u32& last_read(u32 address, int reader) {
    return read_sequence[address / 4 * history.size() + static_cast<size_t>(reader)];
  }

  template <AccessKind kind>
  void touch(Cell& cell, u32 address, u32 bytes, int lane) {
    if constexpr (kind != AccessKind::write) check_read(cell.write, address, lane);
    if constexpr (kind == AccessKind::read) {
      if (cell.reader_signals == signals) {
        cell.readers |= bit;
      } else if (!cell.readers || cell.reader_signals < signals) {
        cell.reader_signals = signals;
        cell.readers = bit;
      }
      if (strict) last_read(address, wave->id) = mine.sequence();
    } else {
      if (kind == AccessKind::atomic && !suspicions.empty()) clear_suspicions(address);
      check_write(cell, address, bytes, lane);
      cell = {mine, 0, signals};
    }
  }

  // Part of a dword, or a dword that is kept by bytes.
  template <AccessKind kind>
  void touch_bytes(Cell& cell, u32 address, u32 bytes, int lane) {
    if (!cell.write.split()) {
      u64 index = split.size();
      if (free_split.empty()) {
        split.emplace_back();
      } else {
        index = free_split.back();
        free_split.pop_back();
      }
      split[index].fill(cell);
      cell.write.bits = 1ull << Write::kSplit | index;
    }
    const u64 index = static_cast<u32>(cell.write.bits);
    std::array<Cell, 4>& byte = split[index];
    Cell* const first = &byte[address % 4];
    const Cell before = *first;
    const bool plain = in_order<kind>(*first);
    if (!plain) touch<kind>(*first, address, 1, lane);
    for (u32 b = 1; b < bytes; ++b) {
      if (kind == AccessKind::write && plain && first[b] == before) {  // as the first of them
        first[b] = {mine, 0, signals};
      } else if (!in_order<kind>(first[b])) {
        touch<kind>(first[b], address + b, 1, lane);
      }
    }
    if (kind == AccessKind::read) return;
    // Bytes that one wave wrote since its last barrier, all unread, are one again: the last of the writes counts.
    u64 last = byte[0].write.bits;
    for (int b = 0; b < 4; ++b) {
      const u64 bits = byte[b].write.bits;
      if (bits >> 32 != last >> 32 || byte[b].readers) return;
      last = std::max(last, bits);
    }
    free_split.push_back(index);
    cell = {Write{last}, 0, signals};
  }

  // The usual access: Dwords at each lane's address, all written by few instructions. Most of the time that checking
  // takes is spent here. Returns the lanes that must be looked at closely.
  template <u32 Dwords, class Mark, class Allowed>
  u64 in_rows(const u32* address, u64 lanes, Mark mark, Allowed allowed) {
    Cell* const all = cells.data();
    u64 left = 0;
    for (; lanes; lanes &= lanes - 1) {
      const int lane = __builtin_ctzll(lanes);
      const u32 from = address[lane];
      if (from & 3) {
        left |= 1ull << lane;
        continue;
      }
      Cell* cell = all + from / 4;
      if (mark.template set<Dwords>(cell)) continue;
      const Write w = cell->write;
      if (allowed(w)) {
        mark.written_by(w);
        if (mark.template set<Dwords>(cell)) continue;
      }
      left |= 1ull << lane;
    }
    return left;
  }
  template <u32 Dwords, AccessKind kind>
  u64 in_rows(const u32* address, u64 lanes) {
    if constexpr (kind == AccessKind::read) {
      return in_rows<Dwords>(address, lanes, ReadMark(signals, bit),
                             [this](Write w) { return w.valid() && limits[limit_index(w)].allows(w); });
    } else {
      return in_rows<Dwords>(address, lanes, WriteMark(mine, signals, passed),
                             [this](Write w) { return !w.split() && (!w.valid() || may_overwrite(w)); });
    }
  }

  template <AccessKind kind>
  void run(const u32* address, u64 lanes, u32 bytes) {
    if constexpr (kind != AccessKind::atomic) {
      if (bytes == 16 && !strict) lanes = in_rows<4, kind>(address, lanes);
      if (bytes == 8 && !strict) lanes = in_rows<2, kind>(address, lanes);
      if (bytes == 4 && !strict) lanes = in_rows<1, kind>(address, lanes);
    }
    for (; lanes; lanes &= lanes - 1) {
      const int lane = __builtin_ctzll(lanes);
      u32 from = address[lane];
      const u32 end = from + bytes;
      if (((from | bytes) & 3) == 0) [[likely]] {
        for (Cell* cell = &cells[from / 4]; from < end; ++cell, from += 4) {
          if (!in_order<kind>(*cell)) touch_any<kind>(*cell, from, 4, lane);
        }
        continue;
      }
      while (from < end) {
        const u32 part = std::min(end - from, 4 - from % 4);
        touch_any<kind>(cells[from / 4], from, part, lane);
        from += part;
      }
    }
  }

  template <AccessKind kind>
  void touch_any(Cell& cell, u32 address, u32 bytes, int lane) {
    if (bytes == 4 && !cell.write.split()) {
      touch<kind>(cell, address, 4, lane);
    } else {
      touch_bytes<kind>(cell, address, bytes, lane);
    }
  }
};

LdsChecker::LdsChecker(const CheckOptions& options, size_t lds_bytes, int waves, bool loads_to_lds)
    : state_(new State(options, lds_bytes, waves, loads_to_lds)) {}
LdsChecker::~LdsChecker() {
  state_->report_overwrites(nullptr);
  state_->report_suspicions(-1);
  delete state_;
}

void LdsChecker::access(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, AccessKind kind,
                        bool from_memory) {
  State& s = *state_;
  const WaveChecker& checker = *wave.checker;
  if (!s.overwrites.empty()) s.report_overwrites(&wave);
  s.wave = &wave;
  s.at = &at;
  s.passed = wave.barriers_passed;
  s.signals = wave.barriers_signalled;
  s.vmem_done = checker.vmem_done();
  s.bit = 1u << wave.id;
  s.reported = false;
  const u32 sequence = (from_memory ? checker.vmem_issued() : checker.lds_issued()) + 1;
  s.update_limits();
  s.mine = Write::make(sequence, s.signals, wave.id, from_memory, kind == AccessKind::atomic);
  if (!s.reads.empty()) {
    if (from_memory) {
      s.check_pending_reads(address, lanes, bytes);
    } else if (kind != AccessKind::write) {
      s.keep_read(address, lanes, bytes);
    }
  }
  switch (kind) {
    case AccessKind::read:
      return s.run<AccessKind::read>(address, lanes, bytes);
    case AccessKind::write:
      return s.run<AccessKind::write>(address, lanes, bytes);
    case AccessKind::atomic:
      return s.run<AccessKind::atomic>(address, lanes, bytes);
  }
}

void LdsChecker::barrier_signalled(const Wave& wave) {
  State& s = *state_;
  SignalHistory& h = s.history[static_cast<size_t>(wave.id)];
  if (wave.barriers_signalled == h.signals) return;  // a wait without a signal
  if (!s.overwrites.empty()) s.report_overwrites(&wave);
  if (!s.suspicions.empty()) s.report_suspicions(wave.id);
  h.signals = wave.barriers_signalled;
  h.lds_done[h.signals % SignalHistory::kKept] = wave.checker->lds_done();
  h.vmem_done[h.signals % SignalHistory::kKept] = wave.checker->vmem_done();
  if (!s.options.same_barrier_instruction || !s.options.on(Check::barrier)) return;
  // The first wave to give a signal decides where it is given.
  u32& where = s.barrier_at[h.signals % SignalHistory::kKept];
  const bool first = std::none_of(s.history.begin(), s.history.end(), [&](const SignalHistory& other) {
    return &other != &h && other.signals >= h.signals;
  });
  const u32 here = wave.pc - 1;
  if (first) {
    where = here;
  } else if (where != here) {
    const Program& program = *wave.group->program;
    wave.group->log->add_at(Check::barrier, wave, program.code[here],
                            "the waves of the workgroup meet at different barrier instructions, another one at", -1,
                            program.code[where].address);
  }
}

}  // namespace emu
