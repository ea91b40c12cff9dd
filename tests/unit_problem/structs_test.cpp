// Structs that are older or newer than the library's.
#include "api/structs.h"

#include <gtest/gtest.h>

namespace flashwave::api {
namespace {

struct Grown {
  uint32_t struct_size;
  int32_t old_field;
  int32_t new_field;  // absent in the first release
  int32_t newest_field;
};
constexpr size_t kFirst = 8;
constexpr Grown kDefaults{sizeof(Grown), 1, 2, 3};

TEST(Structs, AnOlderCallerGetsTheDefaultsOfNewFields) {
  const Grown caller{8, 10, -1, -1};
  Grown copy = kDefaults;
  ASSERT_TRUE(read_struct("s", &caller, kFirst, "init", &copy).ok());
  EXPECT_EQ(copy.old_field, 10);
  EXPECT_EQ(copy.new_field, 2);
  EXPECT_EQ(copy.newest_field, 3);
  EXPECT_EQ(copy.struct_size, sizeof(Grown));
  const Grown between{12, 10, 20, -1};
  copy = kDefaults;
  ASSERT_TRUE(read_struct("s", &between, kFirst, "init", &copy).ok());
  EXPECT_EQ(copy.new_field, 20);
  EXPECT_EQ(copy.newest_field, 3);
}

TEST(Structs, ANewerCallerMayOnlyUseWhatWeKnow) {
  struct {
    Grown known;
    unsigned char more[8];
  } caller = {{sizeof(Grown) + 8, 10, 20, 30}, {}};
  Grown copy = kDefaults;
  EXPECT_TRUE(read_struct("s", &caller.known, kFirst, "init", &copy).ok());
  EXPECT_EQ(copy.newest_field, 30);
  caller.more[7] = 1;
  const Status status = read_struct("s", &caller.known, kFirst, "init", &copy);
  EXPECT_EQ(status.code, FW_INVALID_ARGUMENT);
  EXPECT_NE(status.message.find("s uses a field of a newer flashwave (byte 23"), std::string::npos) << status.message;
}

TEST(Structs, NonsenseSizesAreRefused) {
  for (const uint32_t size : {0u, 7u, 4097u, 0xCCCCCCCCu}) {
    const Grown caller{size, 0, 0, 0};
    Grown copy = kDefaults;
    const Status status = read_struct("s", &caller, kFirst, "call init", &copy);
    EXPECT_EQ(status.code, FW_INVALID_ARGUMENT) << size;
    EXPECT_NE(status.message.find("s.struct_size is " + std::to_string(size)), std::string::npos) << status.message;
    EXPECT_NE(status.message.find("call init"), std::string::npos);
  }
  Grown copy = kDefaults;
  EXPECT_EQ(read_struct<Grown>("s", nullptr, kFirst, "", &copy).message, "s must not be NULL");
}

TEST(Structs, OutputsAreFilledToTheCallersSize) {
  const Grown filled{0, 1, 2, 3};
  Grown older{12, -1, -1, -1};
  write_struct(filled, 12, &older);
  EXPECT_EQ(older.struct_size, 12u);
  EXPECT_EQ(older.new_field, 2);
  EXPECT_EQ(older.newest_field, -1) << "past the caller's struct";
  struct {
    Grown known;
    int32_t more;
  } newer = {{20, -1, -1, -1}, -1};
  write_struct(filled, 20, &newer.known);
  EXPECT_EQ(newer.known.newest_field, 3);
  EXPECT_EQ(newer.more, 0);
  EXPECT_EQ(newer.known.struct_size, 20u);
}

}  // namespace
}  // namespace flashwave::api
