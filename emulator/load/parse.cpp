#include "load/parse.h"

#include <cstdlib>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/opcode.h"

namespace emu {
namespace {

using Text = std::string_view;

// Splits at `separator` outside brackets and parentheses; pieces are trimmed, empty ones dropped.
std::vector<Text> split(Text text, char separator) {
  std::vector<Text> pieces;
  int depth = 0;
  size_t begin = 0;
  auto add = [&](size_t end) {
    Text piece = text.substr(begin, end - begin);
    while (!piece.empty() && piece.front() == ' ') piece.remove_prefix(1);
    while (!piece.empty() && piece.back() == ' ') piece.remove_suffix(1);
    if (!piece.empty()) pieces.push_back(piece);
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '[' || c == '(') ++depth;
    if (c == ']' || c == ')') --depth;
    if (c == separator && depth == 0) {
      add(i);
      begin = i + 1;
    }
  }
  add(text.size());
  return pieces;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "3" or "[3:6]" or "[3]" after a register letter.
bool register_range(Text text, u16& first, u8& width) {
  char* end = nullptr;
  const std::string copy(text);
  if (!copy.empty() && is_digit(copy[0])) {
    first = static_cast<u16>(std::strtoul(copy.c_str(), &end, 10));
    width = 1;
    return *end == 0;
  }
  if (copy.size() < 3 || copy[0] != '[' || copy.back() != ']') return false;
  const unsigned long low = std::strtoul(copy.c_str() + 1, &end, 10);
  unsigned long high = low;
  if (*end == ':') high = std::strtoul(end + 1, &end, 10);
  first = static_cast<u16>(low);
  width = static_cast<u8>(high - low + 1);
  return *end == ']' && high >= low;
}

struct NamedScalar {
  u16 reg;
  u8 width;
};

bool named_scalar(Text name, Operand& o) {
  static const std::unordered_map<Text, NamedScalar> names = {
      {"vcc", {kVcc, 2}},
      {"vcc_lo", {kVcc, 1}},
      {"vcc_hi", {kVcc + 1, 1}},
      {"exec", {kExec, 2}},
      {"exec_lo", {kExec, 1}},
      {"exec_hi", {kExec + 1, 1}},
      {"m0", {kM0, 1}},
      {"null", {kNull, 1}},
      {"flat_scratch", {kFlatScratch, 2}},
      {"flat_scratch_lo", {kFlatScratch, 1}},
      {"flat_scratch_hi", {kFlatScratch + 1, 1}},
      {"src_flat_scratch_base_lo", {kFlatScratch, 1}},
      {"src_flat_scratch_base_hi", {kFlatScratch + 1, 1}},
      {"xnack_mask", {kXnackMask, 2}},
      {"xnack_mask_lo", {kXnackMask, 1}},
      {"xnack_mask_hi", {kXnackMask + 1, 1}},
      {"src_shared_base", {kSharedBase, 2}},
      {"src_shared_limit", {kSharedLimit, 2}},
      {"src_private_base", {kPrivateBase, 2}},
      {"src_private_limit", {kPrivateLimit, 2}},
      {"src_scc", {kSrcScc, 1}},
      {"src_vccz", {kSrcVccz, 1}},
      {"src_execz", {kSrcExecz, 1}},
  };
  const auto found = names.find(name);
  if (found == names.end()) return false;
  o.kind = OperandKind::sgpr;
  o.reg = found->second.reg;
  o.width = found->second.width;
  return true;
}

bool constant_operand(const std::string& text, const Instruction& in, Operand& o) {
  // Fields with names of their own are read from the encoding: hwreg() and sendmsg() in SOPK and SOP1.
  // A literal whose value would also fit an inline constant: printed so that assembling it gives the same encoding.
  if (text.starts_with("lit(") && text.ends_with(")")) return constant_operand(text.substr(4, text.size() - 5), in, o);
  if (text.starts_with("hwreg(")) return o.kind = OperandKind::constant, o.constant = in.word[0] & 0xffff, true;
  if (text.starts_with("sendmsg(")) return o.kind = OperandKind::constant, o.constant = in.word[0] & 0xff, true;
  if (text.starts_with("gpr_idx(")) {
    return o.kind = OperandKind::constant, o.constant = in.word[0] >> 8 & 0xf, true;
  }
  if (!is_digit(text[0]) && text[0] != '-') return false;
  char* end = nullptr;
  const bool negative = text[0] == '-';
  if (text.find("0x") != std::string::npos) {  // inline constants are printed in decimal
    o.is_literal = true;
    const u64 magnitude = std::strtoull(text.c_str() + negative, &end, 16);
    o.constant = negative ? 0 - magnitude : magnitude;
  } else if (text.find('.') != std::string::npos) {
    o.is_float = true;
    // The one constant whose text is shorter than its value: 1 / (2 pi).
    const double value =
        text.find("0.159154") != std::string::npos ? 0.15915494309189532 : std::strtod(text.c_str() + negative, &end);
    if (!end) end = const_cast<char*>("");
    o.constant = bits_of(negative ? -value : value);  // of a double until the type is known
  } else {
    o.constant = static_cast<u64>(std::strtoll(text.c_str(), &end, 10));
  }
  o.kind = OperandKind::constant;
  return *end == 0;
}

bool wrapped(Text& text, Text prefix) {
  if (!text.starts_with(prefix) || !text.ends_with(")")) return false;
  text.remove_prefix(prefix.size());
  text.remove_suffix(1);
  return true;
}

bool parse_operand(Text text, const Instruction& in, Operand& o) {
  if (text.empty()) return false;
  if (text.size() > 1 && text[0] == '-' && !is_digit(text[1])) {
    o.negate = true;
    text.remove_prefix(1);
  }
  if (wrapped(text, "neg(")) o.negate = true;
  if (wrapped(text, "sext(")) o.sign_extend = true;
  if (wrapped(text, "abs(")) o.absolute = true;
  if (text.size() > 2 && text.front() == '|' && text.back() == '|') {
    o.absolute = true;
    text = text.substr(1, text.size() - 2);
  }
  if (text.size() > 3 && text[0] == 'v' && (text.ends_with(".l") || text.ends_with(".h"))) {
    o.half = text.back() == 'l' ? Half::low : Half::high;
    text.remove_suffix(2);
  }
  if (text[0] == 'v' && register_range(text.substr(1), o.reg, o.width)) return o.kind = OperandKind::vgpr, true;
  if (text[0] == 'a' && register_range(text.substr(1), o.reg, o.width)) {
    o.reg += kFirstAgpr;
    return o.kind = OperandKind::vgpr, true;
  }
  if (text[0] == 's' && register_range(text.substr(1), o.reg, o.width)) return o.kind = OperandKind::sgpr, true;
  if (text.starts_with("ttmp") && register_range(text.substr(4), o.reg, o.width)) {
    o.reg += kTtmp0;
    return o.kind = OperandKind::sgpr, true;
  }
  if (named_scalar(text, o)) return true;
  if (text == "off") return o.kind = OperandKind::off, true;
  return constant_operand(std::string(text), in, o);
}

// "[1,0,1]" -> bits, first entry lowest.
u32 bit_list(Text value, int* length = nullptr) {
  u32 bits = 0;
  int n = 0;
  for (char c : value) {
    if (c == '0' || c == '1') bits |= static_cast<u32>(c - '0') << n++;
  }
  if (length) *length = n;
  return bits;
}

int sdwa_select(Text name) {
  static const char* const names[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"};
  for (int i = 0; i < 7; ++i) {
    if (name == names[i]) return i;
  }
  return -1;
}

// DPP controls as the encodings number them (RDNA3 ISA, DPP_CTRL enumeration; gfx9 has wave shifts and broadcasts).
bool dpp_control(Text key, Text value, int n, Instruction& in) {
  static const std::unordered_map<Text, int> base = {{"row_shl", 0x100},   {"row_shr", 0x110},
                                                     {"row_ror", 0x120},   {"row_newbcast", 0x150},
                                                     {"row_share", 0x150}, {"row_xmask", 0x160}};
  int control = -1;
  if (key == "quad_perm") {
    control = 0;
    int lane = 0;
    for (char c : value) {
      if (is_digit(c)) control |= (c - '0') << (2 * lane++);
    }
  } else if (auto found = base.find(key); found != base.end()) {
    control = found->second + n;
  } else if (key == "wave_shl" || key == "wave_rol") {
    control = key == "wave_shl" ? 0x130 : 0x134;
  } else if (key == "wave_shr" || key == "wave_ror") {
    control = key == "wave_shr" ? 0x138 : 0x13c;
  } else if (key == "row_mirror") {
    control = 0x140;
  } else if (key == "row_half_mirror") {
    control = 0x141;
  } else if (key == "row_bcast") {
    control = n == 15 ? 0x142 : 0x143;
  }
  if (control < 0) return false;
  in.dpp = DppKind::dpp16;
  in.dpp_control = static_cast<u16>(control);
  return true;
}

// Sets the field and the bit of `taken`; false if the modifier is not known at all.
bool parse_modifier(Text modifier, Instruction& in, u32& taken) {
  const size_t colon = modifier.find(':');
  const Text key = modifier.substr(0, colon);
  const Text value = colon == Text::npos ? Text() : modifier.substr(colon + 1);
  const int n = static_cast<int>(std::strtol(std::string(value).c_str(), nullptr, 0));
  auto take = [&taken](u32 kind) {
    taken |= kind;
    return true;
  };
  if (key == "offset" || key == "offset0") return in.offset = n, take(kTakesOffset);
  if (key == "offset1") return in.offset1 = n, take(kTakesOffset);
  if (key == "op_sel") {
    int length = 0;
    u32 bits = bit_list(value, &length);
    // The last entry of an unpacked instruction's list is the destination's half; keep it at bit 3.
    const int sources = in.operand_count - 1;
    if (length == sources + 1 && sources < 3) {
      const u32 destination = bits >> sources & 1;
      bits = (bits & ((1u << sources) - 1)) | destination << 3;
    }
    in.op_sel = static_cast<u8>(bits);
    return take(kTakesOpSel);
  }
  if (key == "op_sel_hi") return in.op_sel_hi = static_cast<u8>(bit_list(value)), take(kTakesPacked);
  if (key == "neg_lo") return in.neg_lo = static_cast<u8>(bit_list(value)), take(kTakesPacked);
  if (key == "neg_hi") return in.neg_hi = static_cast<u8>(bit_list(value)), take(kTakesPacked);
  if (key == "clamp") return in.clamp = true, take(kTakesClamp);
  if (key == "mul") return in.omod = n == 2 ? 1 : 2, take(kTakesOmod);
  if (key == "div") return in.omod = 3, take(kTakesOmod);
  if (key == "row_mask") return in.row_mask = static_cast<u8>(n), take(kTakesDpp);
  if (key == "bank_mask") return in.bank_mask = static_cast<u8>(n), take(kTakesDpp);
  if (key == "bound_ctrl") return in.bound_ctrl = true, take(kTakesDpp);
  if (key == "fi") return in.fetch_inactive = n != 0, take(kTakesDpp);
  if (key == "dpp8") {
    int lane = 0;
    for (char c : value) {
      if (is_digit(c)) in.dpp8_select |= static_cast<u32>(c - '0') << (3 * lane++);
    }
    return in.dpp = DppKind::dpp8, take(kTakesDpp);
  }
  if (dpp_control(key, value, n, in)) return take(kTakesDpp);
  if (key == "dst_sel") return in.sdwa_dest_select = static_cast<u8>(sdwa_select(value)), take(kTakesSdwa);
  if (key == "dst_unused") {
    in.sdwa_dest_unused = value == "UNUSED_PRESERVE" ? 2 : value == "UNUSED_SEXT" ? 1 : 0;
    return take(kTakesSdwa);
  }
  if (key == "src0_sel" || key == "src1_sel") {
    // Sources are the operands after the destinations, which are not counted yet: kept aside until they are.
    (key == "src0_sel" ? in.abid : in.blgp) = static_cast<u8>(sdwa_select(value) + 1);
    return take(kTakesSdwa);
  }
  if (key == "cbsz") return in.cbsz = static_cast<u8>(n), take(kTakesMatrix);
  if (key == "abid") return in.abid = static_cast<u8>(n), take(kTakesMatrix);
  if (key == "blgp") return in.blgp = static_cast<u8>(n), take(kTakesMatrix);
  if (key == "neg") return in.blgp = static_cast<u8>(bit_list(value)), take(kTakesMatrix);  // f64 MFMA
  if (key == "index_key") return in.index_key = static_cast<u8>(n), take(kTakesMatrix);
  if (key == "bitop3") return in.bitop3 = static_cast<u32>(n), take(kTakesBitop);
  if (key == "byte_sel") return in.byte_sel = static_cast<u8>(n), take(kTakesByteSel);
  if (key == "offen") return in.offen = true, take(kTakesBuffer);
  if (key == "idxen") return in.idxen = true, take(kTakesBuffer);
  if (key == "lds") return in.to_lds = true, take(kTakesLds);
  if (key == "glc" || key == "sc0") return in.returns = true, take(kTakesCache);
  if (key == "th") return in.returns = value.find("RETURN") != Text::npos, take(kTakesCache);
  if (key == "scope" || key == "sc1" || key == "nt" || key == "slc" || key == "dlc" || key == "scc") {
    return take(kTakesCache);
  }
  return false;
}

u64 constant_bits(const Operand& o, char type) {
  if (o.is_float) {
    const double value = as_f64(o.constant);
    switch (type) {
      case 'h':
      case 'H':
        return f16_of_f32(static_cast<float>(value));
      case 'b':
      case 'B':
        return bf16_of_f32(static_cast<float>(value));
      case 'd':
      case 'q':
        return o.constant;
      default:  // 16-bit integers too: LLVM records it of the hardware (getInlineEncodingV216)
        return bits_of(static_cast<float>(value));
    }
  }
  // A literal of a double is its high half (LLVM "AMDGPU operand syntax"); inline integers are integers.
  if (type == 'd' && o.is_literal) return o.constant << 32;
  return o.constant;
}

void resolve_constants(Instruction& in, const char* signature) {
  const char* types = signature;
  while (*types && *types != '=') ++types;
  if (*types) ++types;
  for (int i = in.dest_count; i < in.operand_count; ++i) {
    Operand& o = in.operand[i];
    const char type = *types ? *types++ : 'u';
    if (!o.is_constant()) continue;
    o.constant = constant_bits(o, type);
    o.is_float = false;
  }
}

int destinations(const char* signature) {
  int n = 0;
  while (signature[n] && signature[n] != '=') ++n;
  return n;
}

std::string base_name(Text mnemonic) {
  std::string name(mnemonic);
  if (name.starts_with("v_dual_")) name = "v_" + name.substr(7);
  for (const char* suffix : {"_dpp", "_sdwa", "_e32", "_e64"}) {  // "_e64_dpp" too
    if (name.ends_with(suffix)) name.resize(name.size() - std::strlen(suffix));
  }
  return name;
}

bool is_sopp(u32 word) { return word >> 23 == 0x17f; }  // one immediate, printed in many ways: read from the encoding

const char* first_bad_modifier(const Instruction& in, u32 taken, u32 allowed) {
  static const std::pair<u32, const char*> names[] = {{kTakesClamp, "clamp"},     {kTakesOmod, "output modifier"},
                                                      {kTakesOpSel, "op_sel"},    {kTakesPacked, "op_sel_hi/neg"},
                                                      {kTakesDpp, "dpp"},         {kTakesSdwa, "sdwa"},
                                                      {kTakesOffset, "offset"},   {kTakesBuffer, "offen/idxen"},
                                                      {kTakesLds, "lds"},         {kTakesMatrix, "cbsz/abid/blgp"},
                                                      {kTakesBitop, "bitop3"},    {kTakesCache, "cache policy"},
                                                      {kTakesByteSel, "byte_sel"}};
  // Packed and matrix instructions print halves and signs under the same names as others do.
  if (allowed & (kTakesPacked | kTakesMatrix)) allowed |= kTakesOpSel | kTakesPacked;
  for (const auto& [bit, name] : names) {
    if ((taken & bit) && !(allowed & bit)) return name;
  }
  if (!(allowed & (kTakesSign | kTakesSdwa | kTakesPacked | kTakesMatrix))) {
    for (int i = 0; i < in.operand_count; ++i) {
      if (in.operand[i].negate || in.operand[i].absolute) return "sign of a source";
    }
  }
  return nullptr;
}

}  // namespace

std::string parse_instruction(const std::string& full_text, const Target& target, Instruction& in) {
  Text text = full_text;
  if (text.find("/*Invalid") != Text::npos) return "bytes that are no valid instruction: " + full_text;
  text = text.substr(0, text.find(" ;"));
  const size_t space = text.find(' ');
  const Text mnemonic = text.substr(0, space);
  const Text rest = space == Text::npos ? Text() : text.substr(space + 1);
  in.simm16 = static_cast<i16>(in.word[0] & 0xffff);
  std::vector<Text> modifiers;
  if (!is_sopp(in.word[0])) {
    for (Text piece : split(rest, ',')) {
      const std::vector<Text> words = split(piece, ' ');
      size_t next = 0;
      if (in.operand_count < kMaxOperands && parse_operand(words[0], in, in.operand[in.operand_count])) {
        ++in.operand_count;
        next = 1;
      } else {
        in.operand[std::min<int>(in.operand_count, kMaxOperands - 1)] = Operand{};
      }
      modifiers.insert(modifiers.end(), words.begin() + static_cast<long>(next), words.end());
    }
  }
  u32 taken = 0;
  for (Text modifier : modifiers) {
    if (!parse_modifier(modifier, in, taken)) {
      return std::string(mnemonic) + ": unknown operand or modifier '" + std::string(modifier) + "'";
    }
  }
  const Opcode* opcode = find_opcode(base_name(mnemonic), target.family);
  if (!opcode) return "unknown instruction '" + std::string(mnemonic) + "'";
  in.opcode = opcode;
  in.execute = opcode->execute;
  in.cls = opcode->cls;
  in.cycles = opcode->cycles;
  in.dest_count = static_cast<u8>(destinations(opcode->signature));
  if (const char* bad = first_bad_modifier(in, taken, opcode->modifiers)) {
    return std::string(mnemonic) + ": modifier '" + bad + "' is not known for it (" + std::string(text) + ")";
  }
  if (taken & kTakesSdwa) {
    if (in.abid) in.operand[in.dest_count].sdwa_select = in.abid - 1;
    if (in.blgp) in.operand[in.dest_count + 1].sdwa_select = in.blgp - 1;
    in.abid = in.blgp = 0;
  }
  resolve_constants(in, opcode->signature);
  if (opcode->bind) {
    if (std::string wrong = opcode->bind(in, target); !wrong.empty()) return std::string(mnemonic) + ": " + wrong;
  }
  return "";
}

}  // namespace emu
