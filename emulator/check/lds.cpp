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

// What a wave had waited for when it signalled its last barriers; kAll: for everything.
struct SignalHistory {
  static constexpr u32 kKept = 8;
  u32 signals = 0;
  u32 lds_done[kKept] = {}, vmem_done[kKept] = {};
  // For this wave as the reader, by writing wave and whether LDS instructions or loads wrote; right for `limits_for`
  // barriers passed.
  u32 limits_for = kAll;
  std::vector<Limit> limits;
  std::array<u32, 2> least = {};  // of the limits' sequences
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
  std::vector<CellLine> lines;
  Cell* cells;                  // of each dword, in the lines
  std::vector<CellLine> split;  // bytes of dwords that are kept so
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
  CellAccess now;
  u32 vmem_done = 0;
  bool reported = false;
  bool strict = false;
  u32 usual[2] = {};  // case of the last rows read, and written

  State(const CheckOptions& o, size_t bytes, int waves, bool loads_to_lds)
      : options(o),
        lines((bytes + sizeof(u32) * 4 - 1) / (sizeof(u32) * 4)),
        cells(lines.empty() ? nullptr : lines[0].cell),
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

  // Others' limits change only when the wave passes a barrier; its own loads may have been waited for since.
  void update_limits() {
    SignalHistory& h = history[static_cast<size_t>(wave->id)];
    if (h.limits_for != now.passed) {
      h.limits_for = now.passed;
      h.limits.assign(history.size() * 2, Limit{});
      h.least = {kAll, kAll};
      for (size_t other = 0; other < history.size(); ++other) {
        for (int vmem = 0; vmem < 2; ++vmem) {
          const u32 done = done_at_signal(static_cast<int>(other), now.passed, vmem);
          h.limits[other * 2 + static_cast<size_t>(vmem)] = {now.passed, done};
          h.least[vmem] = std::min(h.least[vmem], done);
        }
      }
    }
    Limit* own = &h.limits[static_cast<size_t>(wave->id) * 2];
    own[0] = {kAll, kAll};
    own[1] = {kAll, vmem_done};
    now.limits = h.limits.data();
    now.lds_done = h.least[0];
    now.memory_done = h.least[1];
    now.own_memory_done = vmem_done;
  }

  // The usual case of an access that is in order, in few instructions. False: look closely.
  bool read_in_order(Cell& cell) const {
    if (!now.may_read(cell.write) || cell.reader_signals > now.signals || strict) return false;
    cell.readers = cell.reader_signals == now.signals ? cell.readers | now.bit : now.bit;
    cell.reader_signals = now.signals;
    return true;
  }
  bool may_write_in_order(const Cell& cell) const {
    return !strict && !now.is_read_by_others(cell) && now.may_overwrite(cell.write);
  }
  bool write_in_order(Cell& cell) const {
    if (!may_write_in_order(cell)) return false;
    cell = now.written();
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
    } else if (!(now.mine.atomic() && w.atomic())) {
      if (w.signals() >= now.passed && w.atomic()) {
        return suspect(wave->id, "LDS read, without a barrier between, after the atomic", w.wave(), address, lane);
      }
      if (w.signals() >= now.passed) {
        return report_other("LDS read, without a barrier between, after the write", w.wave(), address, lane);
      }
      if (w.sequence() > done_at_signal(w.wave(), now.passed, w.from_memory())) {
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
  void report_overwrites(const Wave* current) {
    if (overwrites.empty() || (current == overwriter && current->executed == overwritten_at)) return;
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
        if (w.from_memory() && !now.mine.from_memory() && w.sequence() > vmem_done) {
          report(Check::wait, "LDS written before the direct-to-LDS load was waited for", address, lane);
        }
      } else if (!(now.mine.atomic() && w.atomic())) {
        if (w.signals() >= now.passed && (now.mine.from_memory() || now.mine.atomic() || w.from_memory())) {
          report_other("LDS written, without a barrier between, after the write", w.wave(), address, lane);
        } else if (w.signals() >= now.passed) {
          keep_overwrite(address, bytes, lane, w.wave());
        } else if (w.from_memory() && w.sequence() > done_at_signal(w.wave(), now.passed, true)) {
          report_other("LDS written after a barrier which came before vmcnt waited for the load", w.wave(), address,
                       lane);
        }
      }
    }
    const u32 others = cell.readers & ~now.bit;
    if (!others) return;
    const int reader = __builtin_ctz(others);
    if (cell.reader_signals >= now.passed) {
      constexpr const char* kRule = "LDS written, without a barrier between, after the read";
      if (now.mine.atomic()) return suspect(reader, kRule, reader, address, lane);
      report_other(kRule, reader, address, lane);
    } else if (strict) {
      for (u32 left = others; left; left &= left - 1) {
        const int other = __builtin_ctz(left);
        if (last_read(address, other) <= done_at_signal(other, now.passed, false)) continue;
        return report_other("LDS written after a barrier which came before a wait for the read", other, address, lane);
      }
    }
  }

  void keep_read(const u32* address, u64 lanes, u32 bytes) {
    ReadHistory& latest = reads[static_cast<size_t>(wave->id)];
    PendingRead& read = latest.read[latest.count++ % ReadHistory::kKept];
    read.sequence = now.mine.sequence();
    read.signals = now.signals;
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
      const u32 done = own ? wave->checker->lds_done() : done_at_signal(static_cast<int>(reader), now.passed, false);
      const ReadHistory& latest = reads[reader];
      const u32 kept = std::min(latest.count, ReadHistory::kKept);
      for (u32 i = 1; i <= kept; ++i) {
        const PendingRead& read = latest.read[(latest.count - i) % ReadHistory::kKept];
        if (read.sequence <= done) break;
        if ((!own && read.signals >= now.passed) || !read.overlaps(row)) continue;
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
      if (cell.reader_signals == now.signals) {
        cell.readers |= now.bit;
      } else if (!cell.readers || cell.reader_signals < now.signals) {
        cell.reader_signals = now.signals;
        cell.readers = now.bit;
      }
      if (strict) last_read(address, wave->id) = now.mine.sequence();
    } else {
      if (kind == AccessKind::atomic && !suspicions.empty()) clear_suspicions(address);
      check_write(cell, address, bytes, lane);
      cell = now.written();
    }
  }

  // A place for the bytes of a dword.
  u64 new_split() {
    if (free_split.empty()) {
      split.emplace_back();
      return split.size() - 1;
    }
    const u64 index = free_split.back();
    free_split.pop_back();
    return index;
  }

  // Half of a dword, written in order, as touch_bytes would; `written`: now.written(). False: look closely.
  bool write_half(Cell& cell, u32 address, const Cell& written) {
    const u32 mine = address & 2, other = 2 - mine;
    if (cell.write.split()) {
      const u64 index = static_cast<u32>(cell.write.bits);
      Cell* const byte = split[index].cell;
      if (byte[mine] != byte[mine + 1] || byte[other] != byte[other + 1]) return false;
      if (!may_write_in_order(byte[mine])) return false;
      if (join_halves(cell, byte[other])) {
        free_split.push_back(index);
      } else {
        byte[mine] = byte[mine + 1] = written;
      }
      return true;
    }
    if (!may_write_in_order(cell)) return false;
    if (join_halves(cell, cell)) return true;
    const u64 index = new_split();
    Cell* const byte = split[index].cell;
    byte[mine] = byte[mine + 1] = written;
    byte[other] = byte[other + 1] = cell;
    cell.write = Write::split_at(index);
    return true;
  }
  // The half that was not written, unread and of the same write as the other, makes a dword with it.
  bool join_halves(Cell& cell, const Cell& kept) const {
    if (!are_one(kept.write, now.mine) || kept.readers) return false;
    cell = {{std::max(kept.write.bits, now.mine.bits)}, 0, now.signals};
    return true;
  }
  // By one wave since its last barrier: the last of the writes counts.
  static bool are_one(const Write& a, const Write& b) { return a.bits >> 32 == b.bits >> 32; }

  // Part of a dword, or a dword that is kept by bytes.
  template <AccessKind kind>
  void touch_bytes(Cell& cell, u32 address, u32 bytes, int lane) {
    if (!cell.write.split()) {
      const u64 place = new_split();
      std::fill_n(split[place].cell, 4, cell);
      cell.write = Write::split_at(place);
    }
    const u64 index = static_cast<u32>(cell.write.bits);
    Cell* const byte = split[index].cell;
    Cell* const first = &byte[address % 4];
    const Cell before = *first;
    const bool plain = in_order<kind>(*first);
    if (!plain) touch<kind>(*first, address, 1, lane);
    for (u32 b = 1; b < bytes; ++b) {
      if (kind == AccessKind::write && plain && first[b] == before) {  // as the first of them
        first[b] = now.written();
      } else if (!in_order<kind>(first[b])) {
        touch<kind>(first[b], address + b, 1, lane);
      }
    }
    if (kind == AccessKind::read) return;
    // Unread bytes of one write are a dword again.
    u64 last = byte[0].write.bits;
    for (int b = 0; b < 4; ++b) {
      if (!are_one(byte[b].write, {last}) || byte[b].readers) return;
      last = std::max(last, byte[b].write.bits);
    }
    free_split.push_back(index);
    cell = {Write{last}, 0, now.signals};
  }

  template <AccessKind kind>
  void run(const u32* address, u64 lanes, u32 bytes) {
    if constexpr (kind != AccessKind::atomic) {
      const RowFunction* const by_dwords = kind == AccessKind::read ? kRowFunctions.read : kRowFunctions.write;
      const bool is_row = bytes == 4 || bytes == 8 || bytes == 16;
      if (is_row && !strict) lanes = by_dwords[bytes / 8](cells, now, address, lanes, usual[kind == AccessKind::write]);
    }
    const Cell written = now.written();
    for (; lanes; lanes &= lanes - 1) {
      const int lane = __builtin_ctzll(lanes);
      u32 from = address[lane];
      const u32 end = from + bytes;
      if (kind == AccessKind::write && bytes == 2 && !(from & 1) && write_half(cells[from / 4], from, written))
        continue;
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
  s.now.passed = wave.barriers_passed;
  s.now.signals = wave.barriers_signalled;
  s.vmem_done = checker.vmem_done();
  s.now.bit = 1u << wave.id;
  s.reported = false;
  const u32 sequence = (from_memory ? checker.vmem_issued() : checker.lds_issued()) + 1;
  s.update_limits();
  s.now.mine = Write::make(sequence, s.now.signals, wave.id, from_memory, kind == AccessKind::atomic);
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
  const WaveChecker& checker = *wave.checker;
  const auto waited_for = [](u32 issued, u32 done) { return done == issued ? kAll : done; };
  h.lds_done[h.signals % SignalHistory::kKept] = waited_for(checker.lds_issued(), checker.lds_done());
  h.vmem_done[h.signals % SignalHistory::kKept] = waited_for(checker.vmem_issued(), checker.vmem_done());
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
