#include "check/register_use.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "core/indexing.h"

namespace emu {
namespace {

using Name = std::string_view;

template <size_t N>
bool one_of(Name name, const std::array<Name, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_vmem_class(Class c) { return c == Class::vmem_load || c == Class::vmem_store || c == Class::vmem_atomic; }
bool is_valu_class(Class c) { return c == Class::vector || c == Class::transcendental || c == Class::matrix; }

// Passes of 4 clocks (LLVM SISchedule.td, checked against what clang 22 inserts after each instruction).
u8 matrix_passes(const Instruction& in, Name name, const Target& target, bool dgemm, int m, int k) {
  if (dgemm) return m == 4 ? 4 : target.cdna >= 4 ? 16 : 8;
  if (m == 4) return 2;
  if (target.cdna < 3) return m == 16 ? 8 : 16;
  const u8 full = m == 16 ? 4 : 8;
  if (name.find("f8f6f4") != Name::npos) {  // formats 0 and 1 are fp8 and bf8, which take twice as long
    return in.cbsz <= 1 || in.blgp <= 1 ? static_cast<u8>(2 * full) : full;
  }
  if (name.starts_with("v_smfmac") || name.find("xf32") != Name::npos) return full;
  // The small-K forms of the first generation run at half rate.
  return k <= 4 ? static_cast<u8>(2 * full) : full;
}

class Builder {
 public:
  Builder(RegisterUseTable& table, const Target& target) : table_(table), target_(target) {}

  // Once all instructions were added and nothing moves any more.
  void link() {
    const RegisterWord* words = table_.words.data();
    const RegisterRange* ranges = table_.ranges.data();
    for (RegisterUse& use : table_.use) {
      use.words = words;
      use.ranges = ranges;
      words += use.read_words + use.write_words;
      ranges += use.read_ranges + use.write_ranges;
    }
  }

  void add(const Instruction& in) {
    use_ = RegisterUse{};
    reads_.clear();
    writes_.clear();
    use_.undefined = undefined_rule(in);
    operands(in);
    if (in.second) {  // VOPD: followed as one instruction
      operands(*in.second);
      const bool computes = use_.undefined == Undefined::reported && undefined_rule(*in.second) == Undefined::reported;
      use_.undefined = computes ? Undefined::reported : Undefined::selected;
    }
    implicit(in);
    counters(in);
    traits(in);
    if (in.cls == Class::matrix) matrix(in);
    if (in.cls == Class::matrix || (use_.traits & kDot)) find_accumulator(in);
    if (target_.cdna) hazard_groups();
    finish();
  }

 private:
  static Name name_of(const Instruction& in) { return in.opcode ? in.opcode->name : ""; }

  static RegisterRange range_of(const Operand& o) {
    if (o.is_vgpr()) return {o.reg, o.width};
    if (!o.is_sgpr() || o.reg >= kScalarRegisters || o.reg == kNull) return {};
    const int count = std::min<int>(o.width, kScalarRegisters - o.reg);
    return {static_cast<u16>(kScalarBase + o.reg), static_cast<u8>(count)};
  }
  void read(const RegisterRange& r) {
    if (r.count) reads_.push_back(r);
  }
  void write(const RegisterRange& r) {
    if (r.count) writes_.push_back(r);
  }
  RegisterRange scalar(u16 reg) const {
    const bool pair = target_.wave_size == 64 && (reg == kVcc || reg == kExec);
    return {static_cast<u16>(kScalarBase + reg), static_cast<u8>(pair ? 2 : 1)};
  }

  // On CDNA, whose registers have error correction, an instruction that loads half of one fills all of it (LLVM
  // d16PreservesUnusedBits).
  RegisterRange range_of(const Instruction& in, int i) const {
    RegisterRange range = range_of(in.operand[i]);
    if (range.count == 1 && in.operand[i].is_vgpr() && target_.is_rdna()) range.halves = halves_of(in, i);
    return range;
  }
  static u8 halves_of(const Instruction& in, int i) {
    const Operand& o = in.operand[i];
    if (o.half != Half::whole) return o.half == Half::low ? kLowHalf : kHighHalf;
    const Name name = name_of(in);
    const int source = i - in.dest_count;
    auto chosen = [source](u8 select) { return select >> source & 1 ? kHighHalf : kLowHalf; };
    if (name.starts_with("v_fma_mix")) {
      if (source < 0) {
        return name.starts_with("v_fma_mixlo") ? kLowHalf : name.starts_with("v_fma_mixhi") ? kHighHalf : kBothHalves;
      }
      return in.op_sel_hi >> source & 1 ? chosen(in.op_sel) : kBothHalves;
    }
    if (source >= 0 && is_pair_of_halves(in, source)) return chosen(in.op_sel) | chosen(in.op_sel_hi);
    const bool buffer = name.starts_with("buffer_"), load = name.find("_load_") != Name::npos;
    if (i != (load ? 0 : in.dest_count + (buffer ? 0 : 1))) return kBothHalves;
    if (name.find("d16_hi") != Name::npos) return kHighHalf;
    if (name.find("d16") != Name::npos) return kLowHalf;
    return name.ends_with("store_b8") || name.ends_with("store_b16") ? kLowHalf : kBothHalves;
  }
  static bool is_pair_of_halves(const Instruction& in, int source) {
    if (!in.opcode || !(in.opcode->modifiers & kTakesPacked)) return false;
    const Name signature = in.opcode->signature;
    const size_t at = signature.find('=') + 1 + static_cast<size_t>(source);
    return at < signature.size() && Name("HWB").find(signature[at]) != Name::npos;
  }

  void operands(const Instruction& in) {
    const u32 flags = in.opcode ? in.opcode->flags : 0;
    const auto [data, data_count] = data_operands(in);
    for (int i = in.dest_count; i < in.operand_count; ++i) {
      const RegisterRange range = i == in.dest_count ? first_source(in) : range_of(in, i);
      if (i >= data && i < data + data_count && range.count) {
        if (!use_.data_ranges++) use_.data_range = static_cast<u8>(reads_.size());
      }
      read(range);
    }
    for (int i = 0; i < in.dest_count && i < in.operand_count; ++i) write(range_of(in, i));
    if ((flags & kReadsDest) && in.dest_count && !is_partial_read(in)) {
      use_.accumulator = static_cast<u8>(reads_.size());
      read(range_of(in, 0));
    }
    if (flags & kWritesSource0) {
      write(range_of(in, in.dest_count));
      read(range_of(in, 0));
    }
    if (flags & kReadsVcc) read(scalar(kVcc));
  }

  // The first source, or the half of it that a bit field of known place lies in: offset in bits 5:0 of the second,
  // width in bits 22:16 (s_bfe_u64, s_bfe_i64). Compilers extend the low half of a pair whose high half holds nothing.
  RegisterRange first_source(const Instruction& in) const {
    RegisterRange range = range_of(in, in.dest_count);
    const Name name = name_of(in);
    if ((name == "s_bfe_u64" || name == "s_bfe_i64") && in.operand[in.dest_count + 1].is_constant() &&
        range.count == 2) {
      const u32 field = static_cast<u32>(in.operand[in.dest_count + 1].constant);
      if ((field & 63) + (field >> 16 & 127) <= 32) range.count = 1;
    }
    return range;
  }

  // Instructions that keep part of their destination are said to read it, but what they keep may be undefined.
  static bool is_partial_read(const Instruction& in) {
    const Name name = name_of(in);
    return name == "v_writelane_b32" || name.find("d16") != Name::npos || name == "s_cmov_b32" ||
           name == "s_cmov_b64" || name.starts_with("v_permlane") || name.starts_with("s_bitset") ||
           name.starts_with("v_cvt");
  }

  // The operands whose value is only moved: first and how many. Stores to LDS and scratch, v_writelane.
  static std::pair<int, int> data_operands(const Instruction& in) {
    const Name name = name_of(in);
    if (name.starts_with("ds_write") || name.starts_with("ds_store")) return {in.dest_count + 1, 2};
    if (name.starts_with("scratch_store")) return {in.dest_count + 1, 1};
    if (name.starts_with("buffer_store") && !in.offen && !in.idxen) return {in.dest_count, 1};  // gfx90a: the stack
    if (name == "v_writelane_b32") return {in.dest_count, 1};
    return {0, 0};
  }

  // Compilers merge the lanes of EXEC into masks that hold nothing for the others yet.
  static bool merges_lane_masks(const Instruction& in, Name name) {
    const bool bitwise = name.starts_with("s_and") || name.starts_with("s_or") || name.starts_with("s_xor");
    return bitwise && in.operand_count == 3 &&
           ((in.operand[1].is_sgpr() && in.operand[1].reg == kExec) ||
            (in.operand[2].is_sgpr() && in.operand[2].reg == kExec));
  }

  static Undefined undefined_rule(const Instruction& in) {
    static constexpr std::array<Name, 18> copies = {
        "v_mov_b32",         "v_mov_b64",     "v_mov_b16",      "v_accvgpr_read_b32",  "v_accvgpr_write_b32",
        "v_accvgpr_mov_b32", "s_mov_b32",     "s_mov_b64",      "v_readfirstlane_b32", "v_readlane_b32",
        "v_swap_b32",        "v_swap_b16",    "v_accvgpr_read", "v_accvgpr_write",     "v_movrels_b32",
        "v_movreld_b32",     "s_movrels_b32", "s_movreld_b32"};
    static constexpr std::array<Name, 6> selects = {"v_cndmask_b32", "v_cndmask_b16", "v_perm_b32",
                                                    "s_cselect_b32", "s_cselect_b64", "v_bfi_b32"};
    static constexpr std::array<Name, 11> low_from_low = {
        "v_lshlrev_b64", "v_lshl_add_u64", "s_lshl_b64",    "s_mul_u64",        "v_mul_u64",       "s_add_nc_u64",
        "s_add_u64",     "v_mad_u64_u32",  "v_mad_i64_i32", "v_mad_co_u64_u32", "v_mad_co_i64_i32"};
    const Name name = name_of(in);
    if (one_of(name, copies)) return Undefined::copied;
    if (one_of(name, selects) || merges_lane_masks(in, name)) return Undefined::selected;
    if (name == "v_pk_mov_b32") return Undefined::packed_move;
    if (name == "v_pk_fma_f32" || name == "v_pk_mul_f32" || name == "v_pk_add_f32") return Undefined::packed;
    if (one_of(name, low_from_low)) return Undefined::high_follows;
    if (in.opcode && (in.opcode->flags & kUndefinedHighOk)) return Undefined::high_follows;
    return data_operands(in).second ? Undefined::ignored : Undefined::reported;
  }

  void implicit(const Instruction& in) {
    const Name name = name_of(in);
    if (name.starts_with("v_cmpx") || name.find("saveexec") != Name::npos || name.find("wrexec") != Name::npos) {
      write(scalar(kExec));
    }
    if (name == "s_set_gpr_idx_on" || name == "s_set_gpr_idx_idx" || name == "s_set_gpr_idx_mode") write(scalar(kM0));
    if (in.to_lds || name.find("load_lds") != Name::npos) {
      read(scalar(kM0));
      table_.loads_to_lds = true;
    }
  }

  void counters(const Instruction& in) {
    const Name name = name_of(in);
    const bool gfx9 = target_.family == Family::gfx9;
    if (in.cls == Class::wait) {
      use_.wait = wait_kind(name);
    } else if (name.starts_with("ds_") && name != "ds_nop") {
      use_.counters = kCountsLds;
    } else if (in.cls == Class::scalar_load || name == "s_memtime" || name == "s_memrealtime" ||
               name.starts_with("s_sendmsg_rtn")) {
      // Prefetches and cache control return nothing and are not waited for.
      const bool silent = name.starts_with("s_prefetch") || name.starts_with("s_dcache");
      use_.counters = silent ? 0 : kCountsScalar;
    } else if (is_vmem_class(in.cls)) {
      const bool returns =
          in.dest_count > 0 || in.to_lds || name.find("load_lds") != Name::npos || in.cls == Class::vmem_load;
      use_.counters = returns || gfx9 ? kCountsLoad : kCountsStore;
      if (name.starts_with("flat_")) use_.counters |= kCountsLds;
      // Cache control that the memory model waits for (LLVM SIInsertWaitcnts: BUFFER_WBL2, GLOBAL_INV, GLOBAL_WB).
    } else if (name == "buffer_wbl2" || (name == "global_inv" && !gfx9)) {
      use_.counters = kCountsLoad;
    } else if (name == "global_wb" || name == "global_wbinv") {
      use_.counters = kCountsStore;
    }
  }

  static WaitKind wait_kind(Name name) {
    static constexpr std::pair<Name, WaitKind> kinds[] = {{"s_waitcnt", WaitKind::waitcnt},
                                                          {"s_waitcnt_vmcnt", WaitKind::load},
                                                          {"s_waitcnt_vscnt", WaitKind::store},
                                                          {"s_waitcnt_lgkmcnt", WaitKind::lds},
                                                          {"s_wait_loadcnt", WaitKind::load},
                                                          {"s_wait_storecnt", WaitKind::store},
                                                          {"s_wait_dscnt", WaitKind::lds},
                                                          {"s_wait_kmcnt", WaitKind::scalar},
                                                          {"s_wait_loadcnt_dscnt", WaitKind::load_lds},
                                                          {"s_wait_storecnt_dscnt", WaitKind::store_lds},
                                                          {"s_wait_idle", WaitKind::all}};
    for (const auto& [text, kind] : kinds) {
      if (name == text) return kind;
    }
    return WaitKind::none;  // export, image sampling and ray tracing counters have nothing to wait for here
  }

  void traits(const Instruction& in) {
    const Name name = name_of(in);
    auto when = [this](bool condition, u32 trait) {
      if (condition) use_.traits |= trait;
    };
    const bool valu = is_valu_class(in.cls) || name == "v_nop";
    const bool vmem = is_vmem_class(in.cls);
    const bool lane_op = name == "v_readlane_b32" || name == "v_writelane_b32";
    when(valu, kValu);
    when(vmem, kVmem);
    when(name.starts_with("ds_"), kLds);
    when(in.cls == Class::matrix && (name.starts_with("v_mfma") || name.starts_with("v_smfmac")), kMfma);
    when(in.cls == Class::matrix && (name.starts_with("v_wmma") || name.starts_with("v_swmmac")), kWmma);
    when(in.cls == Class::transcendental, kTransTrait);
    when(name.starts_with("v_dot"), kDot);
    when(in.dpp != DppKind::none, kDppTrait);
    when(name.starts_with("v_div_fmas"), kDivFmas);
    when(name == "v_readlane_b32" || name == "v_readfirstlane_b32", kReadLane);
    when(name == "v_writelane_b32", kWriteLane);
    when(lane_op && in.operand_count > in.dest_count + 1 && in.source(1).is_sgpr(), kLaneSelect);
    when(name == "v_permlane16_swap_b32" || name == "v_permlane32_swap_b32", kPermlaneSwap);
    when(name.starts_with("v_permlane") && name.find("swap") == Name::npos, kPermlane);
    when(valu && name.starts_with("v_cmpx"), kWritesExecByValu);
    when(valu && std::any_of(writes_.begin(), writes_.end(), [](const auto& r) { return r.first >= kScalarBase; }),
         kValuWritesScalar);
    when(valu && (in.sdwa_dest_select != 6 || (in.op_sel & 8)), kPartialDest);
    when(vmem && in.cls != Class::vmem_load && is_big_store(in, name), kBigStore);
    when(in.to_lds || name.find("load_lds") != Name::npos || name.starts_with("s_movrel") || name == "s_sendmsg",
         kReadsM0Late);
    when(in.cls == Class::scalar && in.dest_count && in.operand[0].is_sgpr() && in.operand[0].reg == kM0,
         kSaluWritesM0);
    when(name == "v_fma_f64" || name == "v_fmac_f64", kFmaF64);
    when(name.starts_with("flat_") && vmem, kFlat);
    when(name.starts_with("s_setpc") || name.starts_with("s_swappc") || name.starts_with("s_call") ||
             name.starts_with("s_set_pc") || name.starts_with("s_swap_pc"),
         kJump);
    when(name == "v_nop", kVNop);
    when(name.starts_with("v_accvgpr_read"), kAccRead);
    when(name.starts_with("v_accvgpr_write"), kAccWrite);
    when(name.find("_movrel") != Name::npos, kRelative);
    when(in.cls == Class::branch || in.cls == Class::barrier, kMayPause);
    when(use_.counters || use_.wait != WaitKind::none, kOnCounters);
    // LLVM counts cache control among the vector memory instructions, which wait for the VALU (fixVALUTransUseHazard).
    when((name == "s_waitcnt_depctr" && (in.simm16 >> 12 & 15) == 0) || name == "buffer_gl0_inv" ||
             name == "buffer_gl1_inv",
         kWaitsForValu);
    if (name == "s_nop") use_.wait_states = static_cast<u8>((in.simm16 & 15) + 1);
  }

  void hazard_groups() {
    const u32 t = use_.traits;
    const bool gfx940 = target_.cdna >= 3, gfx908 = target_.cdna == 1;
    const bool plain_valu = (t & kValu) && !(t & kMfma);
    const bool acc_write = gfx908 && (t & kAccWrite);
    auto scalar = [](const RegisterRange& r) { return r.first >= kScalarBase; };
    auto exec = [](const RegisterRange& r) { return r.overlaps({kScalarBase + kExec, 2}); };
    const bool reads_scalar = std::any_of(reads_.begin(), reads_.end(), scalar);
    const bool writes_vector = !std::all_of(writes_.begin(), writes_.end(), scalar);
    auto set = [](u16& groups, bool condition, HazardGroup group) {
      if (condition) groups |= static_cast<u16>(1 << group);
    };
    set(use_.begins, (t & kValu) && writes_vector, kVectorResult);
    set(use_.begins, gfx940 && (t & kTransTrait), kTransResult);
    set(use_.begins, gfx940 && (t & kPartialDest), kPartialResult);
    set(use_.begins, t & kValuWritesScalar, kScalarResult);
    set(use_.begins, (t & kWritesExecByValu) || ((t & kValu) && std::any_of(writes_.begin(), writes_.end(), exec)),
        kExecResult);
    set(use_.begins, t & kBigStore, kStoreData);
    set(use_.begins, t & kSaluWritesM0, kM0Result);
    set(use_.begins, use_.matrix == MatrixKind::dgemm4 || use_.matrix == MatrixKind::dgemm16, kDgemmIssued);
    set(use_.begins, (t & (kVmem | kLds)) && writes_vector, kLoadResult);

    set(use_.sensitive, (t & (kDppTrait | kMfma | kPermlaneSwap)) || acc_write, kVectorResult);
    set(use_.sensitive, gfx940 && (t & kReadLane), kVectorResult);
    set(use_.sensitive, gfx908 && (t & (kVmem | kLds)), kVectorResult);
    set(use_.sensitive, gfx940 && plain_valu && !(t & kTransTrait), kTransResult);
    set(use_.sensitive, gfx940 && plain_valu, kPartialResult);
    set(use_.sensitive, reads_scalar && ((t & (kVmem | kDivFmas | kLaneSelect)) || (gfx940 && plain_valu)),
        kScalarResult);
    set(use_.sensitive, (t & (kDppTrait | kMfma | kPermlaneSwap)) || acc_write, kExecResult);
    set(use_.sensitive, gfx940 && (t & (kReadLane | kWriteLane)), kExecResult);
    set(use_.sensitive, t & kValu, kStoreData);
    set(use_.sensitive, t & kReadsM0Late, kM0Result);
    set(use_.sensitive, t & kFmaF64, kDgemmIssued);
    set(use_.sensitive, t & kDppTrait, kLoadResult);
  }

  // Data of more than 64 bits, read after the instruction issued; buffer stores with an SGPR offset read it in time
  // (LLVM GCNHazardRecognizer, createsVALUHazard).
  static bool is_big_store(const Instruction& in, Name name) {
    const bool buffer = name.starts_with("buffer_");
    const int data = in.dest_count + (buffer ? 0 : 1);
    if (data >= in.operand_count || !in.operand[data].is_vgpr() || in.operand[data].width <= 2) return false;
    return !buffer || !in.operand[in.operand_count - 1].is_sgpr();
  }

  void matrix(const Instruction& in) {
    const Name name = name_of(in);
    // "v_mfma_f32_16x16x32_f16": M and K follow the second and third 'x'-separated numbers.
    const size_t x = name.find("x");
    if (x == Name::npos) return;
    size_t start = x;
    while (start > 0 && name[start - 1] >= '0' && name[start - 1] <= '9') --start;
    const int m = std::atoi(std::string(name.substr(start)).c_str());
    const size_t second = name.find('x', x + 1);
    const int k = second == Name::npos ? 0 : std::atoi(std::string(name.substr(second + 1)).c_str());
    const bool dgemm = name.starts_with("v_mfma_f64");
    const bool single =
        target_.cdna >= 3 && name.starts_with("v_mfma_f32") && name.ends_with("f32") && !name.ends_with("xf32");
    use_.matrix = dgemm    ? (m == 4 ? MatrixKind::dgemm4 : MatrixKind::dgemm16)
                  : single ? MatrixKind::single
                           : MatrixKind::xdl;
    if (use_.traits & kMfma) use_.passes = matrix_passes(in, name, target_, dgemm, m, k);
  }

  // Source C of matrix and dot instructions; a constant when there is nothing to add. Those that add to their
  // destination (SMFMAC, SWMMAC, v_dot2c) have it already.
  void find_accumulator(const Instruction& in) {
    if (use_.accumulator != 0xff || in.operand_count <= in.dest_count + 2 || !range_of(in.source(2)).count) return;
    use_.accumulator = 0;
    for (int i = 0; i < 2; ++i) use_.accumulator += range_of(in.source(i)).count ? 1 : 0;
  }

  static void add_bits(std::vector<RegisterWord>& words, size_t from, const RegisterRange& r) {
    for (u32 reg = r.first; reg < static_cast<u32>(r.first) + r.count; ++reg) {
      const auto found = std::find_if(words.begin() + static_cast<long>(from), words.end(),
                                      [&](const RegisterWord& w) { return w.word == reg / 64; });
      RegisterWord& word = found != words.end() ? *found : words.emplace_back(RegisterWord{0, reg / 64});
      word.mask |= 1ull << reg % 64;
    }
  }

  void finish() {
    const size_t first = table_.words.size();
    for (const RegisterRange& r : reads_) add_bits(table_.words, first, r);
    use_.read_words = static_cast<u8>(table_.words.size() - first);
    const size_t from = table_.words.size();
    for (const RegisterRange& r : writes_) add_bits(table_.words, from, r);
    use_.write_words = static_cast<u8>(table_.words.size() - from);
    use_.read_ranges = static_cast<u8>(reads_.size());
    use_.write_ranges = static_cast<u8>(writes_.size());
    table_.ranges.insert(table_.ranges.end(), reads_.begin(), reads_.end());
    table_.ranges.insert(table_.ranges.end(), writes_.begin(), writes_.end());
    table_.use.push_back(use_);
  }

  RegisterUseTable& table_;
  const Target& target_;
  RegisterUse use_;
  std::vector<RegisterRange> reads_, writes_;
};

}  // namespace

const RegisterUseTable& register_use_of(const Program& program) {
  std::call_once(program.register_use_once, [&] {
    auto table = std::make_shared<RegisterUseTable>();
    Builder builder(*table, *program.target);
    table->use.reserve(program.code.size());
    for (const Instruction& in : program.code) builder.add(in);
    builder.link();
    program.register_use = std::move(table);
  });
  return *program.register_use;
}

const RegisterUse& indexed_use_of(const Program& program, const Instruction& in, const Indexing& indexing) {
  const RegisterUseTable& table = register_use_of(program);
  if (!indexing.index || !indexing.operands) return table.use[in.index];
  const std::lock_guard lock(table.mutex);
  std::unique_ptr<RegisterUseTable>& one = table.indexed[{in.index, indexing.index, indexing.operands}];
  if (!one) {
    one = std::make_unique<RegisterUseTable>();
    Builder builder(*one, *program.target);
    builder.add(indexing.apply(program.code[in.index]));
    builder.link();
  }
  return one->use.front();
}

std::string register_name(int reg) {
  if (reg < kFirstAgpr) return "v" + std::to_string(reg);
  if (reg < kScalarBase) return "a" + std::to_string(reg - kFirstAgpr);
  switch (reg - kScalarBase) {
    case kVcc:
      return "vcc_lo";
    case kVcc + 1:
      return "vcc_hi";
    case kM0:
      return "m0";
    case kExec:
      return "exec_lo";
    case kExec + 1:
      return "exec_hi";
    default:
      return "s" + std::to_string(reg - kScalarBase);
  }
}

}  // namespace emu
