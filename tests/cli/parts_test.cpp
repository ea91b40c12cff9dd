#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "counters.h"
#include "dtype.h"
#include "geometry.h"
#include "json.h"
#include "json_value.h"
#include "measure.h"
#include "rows.h"
#include "sgemm.h"
#include "standard_attention.h"
#include "svg.h"
#include "table.h"
#include "tensors.h"

namespace flashwave::cli {
namespace {

TEST(DType, EveryBitPatternSurvives) {
  for (const fw_dtype type : {FW_BF16, FW_F16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto in = uint16_t(bits);
      uint16_t out;
      float value;
      load(&in, 1, type, &value);
      store(&value, 1, type, &out);
      if (std::isnan(value)) {
        float again;
        load(&out, 1, type, &again);
        EXPECT_TRUE(std::isnan(again));
      } else {
        ASSERT_EQ(in, out) << dtype_name(type);
      }
    }
  }
}

TEST(DType, RoundsToNearestEven) {
  EXPECT_EQ(round_to(1.0f + 0x1p-8f, FW_BF16), 1.0f);
  EXPECT_EQ(round_to(1.0f + 3 * 0x1p-8f, FW_BF16), 1.0f + 0x1p-6f);
  EXPECT_EQ(round_to(1.0f + 0x1p-11f, FW_F16), 1.0f);
  EXPECT_EQ(round_to(1.0f + 3 * 0x1p-11f, FW_F16), 1.0f + 0x1p-9f);
  EXPECT_EQ(round_to(65519.0f, FW_F16), 65504.0f);
  EXPECT_TRUE(std::isinf(round_to(65520.0f, FW_F16)));
  EXPECT_EQ(round_to(0x1.8p-25f, FW_F16), 0x1p-24f);
  EXPECT_EQ(round_to(0x1p-25f, FW_F16), 0.0f);
  EXPECT_EQ(round_to(2047.9f * 0x1p-25f, FW_F16), 0x1p-14f);
}

TEST(Geometry, PackedTensorsShareRows) {
  const Geometry g = make_geometry(parse_case("layout=qkvpacked b=2 sq=5 hq=4 hk=2 dqk=8 dv=6"));
  const int64_t width = 4 * 8 + 2 * 8 + 2 * 6;
  EXPECT_EQ(g.elements[kQ], 2 * 5 * width);
  EXPECT_EQ(g.view[kV].buffer, kQ);
  EXPECT_EQ(g.view[kV].offset, 4 * 8 + 2 * 8);
  EXPECT_EQ(g.view[kK].stride[1], width);
}

TEST(Geometry, PagesAreDistinctAndLengthsFit) {
  for (int seed = 1; seed < 30; ++seed) {
    const Geometry g =
        make_geometry(parse_case("b=4 sq=3 sk=50 page=16 append=5 leftpad=1 seed=" + std::to_string(seed)));
    const std::set<int32_t> pages(g.block_table.begin(), g.block_table.end());
    EXPECT_EQ(pages.size(), g.block_table.size());
    for (const SequenceShape& s : g.sequences) {
      EXPECT_LE(s.stored + 5, 50);
      EXPECT_LE(s.leftpad, s.stored);
    }
  }
}

TEST(Geometry, CausalIsAlignedToTheBottomRight) {
  const Case c = parse_case("causal=1 sq=5 sk=3");
  EXPECT_EQ(visible_keys(c, {5, 3, 0}, 1).last, 0);
  EXPECT_EQ(visible_keys(c, {5, 3, 0}, 2).last, 1);
  EXPECT_EQ(visible_keys(c, {5, 3, 0}, 4).last, 3);
  const Case w = parse_case("window=1,0 sq=4");
  EXPECT_EQ(visible_keys(w, {4, 4, 0}, 2).first, 1);
  EXPECT_EQ(visible_keys(w, {4, 4, 0}, 2).last, 3);
}

TEST(Values, RowsNobodyOwnsAreNan) {
  const Geometry g = make_geometry(parse_case("b=3 sq=4 sk=20 d=4 seqused=1 seed=5"));
  const HostValues values = make_values(g);
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t row = 0; row < 20; ++row) {
      const float first = values.buffer[kK][size_t((b * 20 + row) * 4)];
      EXPECT_EQ(std::isnan(first), row >= g.sequences[size_t(b)].stored);
    }
  }
}

TEST(Sgemm, BuiltInAgreesWithPlainLoops) {
  const int64_t m = 7, n = 9, k = 300;
  std::vector<float> a(size_t(m * k)), b(size_t(k * n));
  for (size_t i = 0; i < a.size(); ++i) a[i] = float(i % 13) - 6;
  for (size_t i = 0; i < b.size(); ++i) b[i] = float(i % 7) - 3;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      std::vector<float> c(size_t(m * n), 2.0f), by_library = c;
      Gemm g{ta, tb, m, n, k, 0.5f, 1.0f, a.data(), ta ? m : k, b.data(), tb ? k : n, c.data(), n};
      sgemm_builtin(g);
      g.c = by_library.data();
      sgemm(g);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          float expected = 0;
          for (int64_t l = 0; l < k; ++l) {
            expected += a[size_t(ta ? l * m + i : i * k + l)] * b[size_t(tb ? j * k + l : l * n + j)];
          }
          EXPECT_NEAR(c[size_t(i * n + j)], 2 + 0.5f * expected, 1e-3);
          EXPECT_NEAR(by_library[size_t(i * n + j)], 2 + 0.5f * expected, 1e-3);
        }
      }
    }
  }
}

// The comparison must compute what we compute, or its time means nothing.
TEST(StandardAttention, AgreesWithTheRowReference) {
  for (const char* words : {"op=bwd b=2 sq=19 sk=37 hq=4 hk=2 dqk=16 dv=8 causal=1 seed=3",
                            "op=bwd b=1 sq=33 sk=33 hq=2 d=24 window=9,4 layout=qkvpacked seed=4"}) {
    const Geometry g = make_geometry(parse_case(words));
    const Case& c = g.problem;
    HostValues values = make_values(g);
    StandardAttention standard(g, values, 2);
    standard.backward();
    const RowReference reference(g, values);
    values.buffer[kO].resize(size_t(g.elements[kO]));
    values.buffer[kLse].resize(size_t(g.elements[kLse]));
    for (int64_t b = 0; b < c.b; ++b) {
      for (int64_t h = 0; h < c.hq; ++h) {
        for (int64_t i = 0; i < c.sq; ++i) {
          const RowReference::Query row = reference.query(b, h, i);
          const size_t at = size_t((b * c.hq + h) * c.sq + i);
          const View &o = g.view[kO], &lse = g.view[kLse];
          values.buffer[kLse][size_t(b * lse.stride[0] + i * lse.stride[1] + h * lse.stride[2])] = float(row.lse);
          for (int64_t l = 0; l < c.dv; ++l) {
            EXPECT_NEAR(standard.o()[at * size_t(c.dv) + size_t(l)], row.o[size_t(l)], 2e-6);
            values.buffer[kO][size_t(b * o.stride[0] + i * o.stride[1] + h * o.stride[2] + l)] =
                float(row.o[size_t(l)]);
          }
          for (int64_t l = 0; l < c.dqk; ++l) {
            EXPECT_NEAR(standard.dq()[at * size_t(c.dqk) + size_t(l)], row.dq[size_t(l)], 5e-6);
          }
        }
      }
    }
    for (int64_t j = 0; j < c.sk; ++j) {
      const RowReference::Key key = reference.key_gradients(c.b - 1, 0, j);
      const size_t at = size_t((c.b - 1) * c.hk * c.sk + j);
      for (int64_t l = 0; l < c.dqk; ++l) {
        EXPECT_NEAR(standard.dk()[at * size_t(c.dqk) + size_t(l)], key.dk[size_t(l)], 1e-5);
      }
      for (int64_t l = 0; l < c.dv; ++l) {
        EXPECT_NEAR(standard.dv()[at * size_t(c.dv) + size_t(l)], key.dv[size_t(l)], 1e-5);
      }
    }
  }
}

// What bench relies on to call an answer wrong: the reference kernel passes, a planted error does not.
TEST(SampledRows, SeeAPlantedError) {
  const Geometry g = make_geometry(parse_case("b=1 sq=1 sk=40 hq=1 d=8 sinks=1 alibi=h softcap=9 bias=full seed=2"));
  const HostValues values = make_values(g);
  Staged staged(open_device("cpu"), g, FW_F32);
  staged.upload(values);
  EXPECT_NE(sampled_rows_fault(g, values, staged), "");  // still poison
  run_problem(staged, false, {"reference_fwd", 1});
  EXPECT_EQ(sampled_rows_fault(g, values, staged), "");
  std::vector<std::byte> o = staged.download_raw(kO);
  float value;
  load(o.data(), 1, FW_F32, &value);
  value += 1e-3f;
  store(&value, 1, FW_F32, o.data());
  staged.upload_raw(kO, o);
  EXPECT_NE(sampled_rows_fault(g, values, staged), "");
}

TEST(Staged, NoticesChangedInputs) {
  const Geometry g = make_geometry(parse_case("sq=4 d=4"));
  Staged staged(open_device("cpu"), g, FW_F32);
  staged.upload(make_values(g));
  EXPECT_EQ(staged.broken_promise(), "");
  static_cast<float*>(staged.attention().q.data)[3] += 1;
  EXPECT_NE(staged.broken_promise().find("q"), std::string::npos);
  static_cast<float*>(staged.attention().q.data)[3] -= 1;
  static_cast<char*>(staged.attention().o.data)[-1] = 0;
  EXPECT_NE(staged.broken_promise().find("outside"), std::string::npos);
}

TEST(Percentile, NearestRank) {
  EXPECT_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(percentile({1, 2, 3, 4}, 0.75), 3);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(Json, QuotesAndFindsMembers) {
  JsonObject object;
  object.text("a", "x\"y\\\n").raw("list", R"([{"kernel": "inner"}])").text("kernel", "outer").number("n", NAN);
  EXPECT_EQ(json_member(object.str(), "kernel"), "outer");
  EXPECT_EQ(json_member(object.str(), "n"), "");
  EXPECT_EQ(json_member(R"({"kernel": null, "refused": [{"kernel": "x"}]})", "kernel"), "");
  EXPECT_NE(object.str().find("\\u000a"), std::string::npos);
}

TEST(Json, IsReadBack) {
  const JsonValue value = parse_json(R"( {"a": [1, -2.5e3, true, false, null], "b": {"c": "x\"y\u000a\n"}, "d": []} )");
  ASSERT_EQ(value["a"].items.size(), 5u);
  EXPECT_EQ(value["a"].items[1].number, -2500);
  EXPECT_EQ(value["a"].items[2].number, 1);
  EXPECT_EQ(value["a"].items[3].number, 0);
  EXPECT_EQ(value["a"].items[4].kind, JsonValue::Kind::kNull);
  EXPECT_EQ(value["b"]["c"].text, "x\"y\n\n");
  EXPECT_TRUE(value["d"].items.empty());
  EXPECT_EQ(value["none"]["at all"].number, 0);
  for (const char* wrong : {"", "{", "[1", "[1,]", "{\"a\" 1}", "\"x", "1 2", "nul", "{1: 2}"}) {
    EXPECT_THROW(parse_json(wrong), std::runtime_error) << wrong;
  }
  EXPECT_THROW(parse_json(std::string(1000, '[')), std::runtime_error);
}

TEST(Counters, SumOverLaunches) {
  const char* launch = R"({"kernel": "k", "counters": {"instructions": 20000, "classes": {"matrix": 100, "vector": 3,
    "transcendental": 2, "lds_read": 4, "lds_write": 5, "vmem_load": 6, "vmem_store": 1}, "matrix_clocks": 50,
    "lds_clocks": 30, "lds_ideal_clocks": 20, "vmem_bytes": 2048, "unique_bytes": 1024, "overlap_bound": 0.5,
    "serial_bound": 0.25}})";
  const char* without_matrix = R"({"counters": {"instructions": 5, "classes": {}, "matrix_clocks": 0,
    "overlap_bound": 0, "serial_bound": 0}})";
  const Counts c = sum_counters("[" + std::string(launch) + ", " + launch + ", " + without_matrix + "]");
  EXPECT_EQ(c.launches, 3);
  EXPECT_EQ(c.instructions, 40005);
  EXPECT_EQ(c.matrix, 200);
  EXPECT_EQ(c.lds, 18);
  EXPECT_EQ(c.memory, 14);
  EXPECT_EQ(c.memory_bytes, 4096);
  EXPECT_DOUBLE_EQ(c.overlap_bound, 0.5);
  EXPECT_DOUBLE_EQ(c.serial_bound, 0.25);
  EXPECT_EQ(counter_cells(c), (std::vector<std::string>{"3", "40.01 k", "200", "6", "4", "18", "14", "4.0 KiB",
                                                        "2.0 KiB", "1.50x", "50.0%", "25.0%"}));
  EXPECT_EQ(counter_cells(c).size(), counter_columns().size());
  EXPECT_EQ(sum_counters("[]").launches, 0);
}

TEST(Counters, TheCpuHasNone) { EXPECT_FALSE(start_counters(open_device("cpu"))); }

TEST(Svg, IsWellFormedEnough) {
  const std::string svg = to_svg({"a < b", "s", "GFLOP/s", "peak", {"x", "y"}, {{"g&h", {1, 2}, 3}}});
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("g&amp;h"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(axis_step(100), 20);
  EXPECT_EQ(axis_step(7), 2);
}

TEST(Table, ColumnsAlign) {
  Table table({{"name", false}, {"n", true}});
  table.add({"a", "1"});
  table.add({"long name", "100"});
  EXPECT_EQ(table.str(), "name         n\n---------  ---\na            1\nlong name  100\n");
}

}  // namespace
}  // namespace flashwave::cli
