#include <cstring>

#include "hip_sample.h"

namespace {

using namespace hip_test;

hipError_t load(int device, const std::vector<char>& image) {
  EXPECT_FALSE(image.empty()) << "the test has no kernels";
  EXPECT_EQ(hipSetDevice(device), hipSuccess);
  hipModule_t module = nullptr;
  const hipError_t error = hipModuleLoadData(&module, image.data());
  EXPECT_EQ(module != nullptr, error == hipSuccess);
  if (module != nullptr) EXPECT_EQ(hipModuleUnload(module), hipSuccess);
  EXPECT_EQ(hipSetDevice(kGfx942), hipSuccess);
  return error;
}

TEST(HipModules, OfTheDevice) {
  EXPECT_EQ(load(kGfx942, code_object("hip_kernels.gfx942.co")), hipSuccess) << fwemu_last_error();
  EXPECT_EQ(load(kGfx1100, code_object("hip_kernels.gfx1100.co")), hipSuccess) << fwemu_last_error();
}

TEST(HipModules, OfAnotherGpuAreNoBinary) {
  EXPECT_EQ(load(kGfx942, code_object("hip_kernels.gfx1100.co")), hipErrorNoBinaryForGpu);
  EXPECT_TRUE(contains(fwemu_last_error(), "gfx1100")) << fwemu_last_error();
  EXPECT_TRUE(contains(fwemu_last_error(), "gfx942")) << fwemu_last_error();
}

TEST(HipModules, BundlesHoldOneForEach) {
  const std::vector<char> bundle = code_object("hip_kernels.bundle");
  EXPECT_EQ(load(kGfx942, bundle), hipSuccess) << fwemu_last_error();
  EXPECT_EQ(load(kGfx1100, bundle), hipSuccess) << fwemu_last_error();
  int gfx950 = -1;
  ASSERT_EQ(fwemu_open("gfx950", &gfx950), 0);
  EXPECT_EQ(load(gfx950, bundle), hipErrorNoBinaryForGpu);
  for (const char* part : {"holds code for ", "gfx942", "gfx1100", "the device is gfx950"}) {
    EXPECT_TRUE(contains(fwemu_last_error(), part)) << fwemu_last_error();
  }
}

TEST(HipModules, UnknownInstructionsAreNamed) {
  EXPECT_EQ(load(kGfx1100, code_object("hip_unknown.co")), hipErrorInvalidImage);
  EXPECT_TRUE(contains(fwemu_last_error(), "image_load")) << fwemu_last_error();
}

TEST(HipModules, JunkIsRefused) {
  std::vector<char> junk(4096, 'x');
  EXPECT_EQ(load(kGfx942, junk), hipErrorInvalidImage);
  std::vector<char> compressed = junk;
  std::memcpy(compressed.data(), "CCOB", 4);
  EXPECT_EQ(load(kGfx942, compressed), hipErrorInvalidImage);
  EXPECT_TRUE(contains(fwemu_last_error(), "--no-offload-compress")) << fwemu_last_error();
  std::vector<char> host(4096, 0);  // an ELF file of another machine
  std::memcpy(host.data(), "\177ELF\2\1\1", 7);
  host[18] = 62;
  EXPECT_EQ(load(kGfx942, host), hipErrorInvalidImage);
  EXPECT_TRUE(contains(fwemu_last_error(), "not one for AMD GPUs")) << fwemu_last_error();
  hipModule_t module = nullptr;
  EXPECT_EQ(hipModuleLoadData(&module, nullptr), hipErrorInvalidValue);
  EXPECT_EQ(hipModuleLoadData(nullptr, junk.data()), hipErrorInvalidValue);
}

TEST(HipModules, FilesAreReadWhole) {
  hipModule_t module = nullptr;
  ASSERT_EQ(hipSetDevice(kGfx942), hipSuccess);
  const std::string path = std::string(flashwave::paths::kCodeObjects) + "/hip_kernels.gfx942.co";
  EXPECT_EQ(hipModuleLoad(&module, path.c_str()), hipSuccess) << fwemu_last_error();
  EXPECT_EQ(hipModuleUnload(module), hipSuccess);
  EXPECT_EQ(hipModuleUnload(module), hipErrorInvalidHandle);
  EXPECT_EQ(hipModuleLoad(&module, "/nowhere/at/all"), hipErrorFileNotFound);
  // Cut off anywhere, a file is refused, never read past its end.
  const std::vector<char> whole = code_object("hip_kernels.gfx942.co");
  const std::string cut = testing::TempDir() + "/cut.co";
  for (const size_t bytes : {size_t{1}, size_t{4}, size_t{63}, size_t{64}, size_t{1000}, whole.size() - 1}) {
    std::ofstream(cut, std::ios::binary).write(whole.data(), static_cast<std::streamsize>(bytes));
    EXPECT_EQ(hipModuleLoad(&module, cut.c_str()), hipErrorInvalidImage) << bytes;
  }
}

class HipFunctions : public Kernels {};

TEST_F(HipFunctions, AreFoundByName) {
  hipFunction_t first = nullptr, second = nullptr;
  EXPECT_EQ(hipModuleGetFunction(&first, module_, "scale"), hipSuccess);
  EXPECT_EQ(hipModuleGetFunction(&second, module_, "scale"), hipSuccess);
  EXPECT_EQ(first, second);
  EXPECT_EQ(hipModuleGetFunction(&first, module_, "skale"), hipErrorNotFound);
  EXPECT_TRUE(contains(fwemu_last_error(), "scale")) << "says which there are";
}

TEST_F(HipFunctions, EndWithTheirModule) {
  hipModule_t module = nullptr;
  ASSERT_EQ(hipModuleLoadData(&module, code_object("hip_kernels.gfx942.co").data()), hipSuccess);
  hipFunction_t found = nullptr;
  ASSERT_EQ(hipModuleGetFunction(&found, module, "lookup"), hipSuccess);
  ASSERT_EQ(hipModuleUnload(module), hipSuccess);
  int value = 0;
  EXPECT_EQ(hipFuncGetAttribute(&value, HIP_FUNC_ATTRIBUTE_NUM_REGS, found), hipErrorInvalidHandle);
  EXPECT_EQ(hipModuleLaunchKernel(found, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), hipErrorInvalidHandle);
}

TEST_F(HipFunctions, HaveFacts) {
  const auto attribute = [&](const char* name, hipFunction_attribute which) {
    int value = -1;
    EXPECT_EQ(hipFuncGetAttribute(&value, which, function(name)), hipSuccess);
    return value;
  };
  EXPECT_EQ(attribute("small_groups", HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 64);
  EXPECT_EQ(attribute("scale", HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 0);
  EXPECT_EQ(attribute("scale", HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), 0);
  EXPECT_EQ(attribute("scale", HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), 65536);
  EXPECT_GT(attribute("uninitialised", HIP_FUNC_ATTRIBUTE_NUM_REGS), 100);
  const auto blocks = [&](const char* name, int size, size_t lds) {
    int value = -1;
    EXPECT_EQ(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&value, function(name), size, lds), hipSuccess);
    return value;
  };
  EXPECT_EQ(blocks("scale", 64, 0), 32) << "8 waves on each of 4 SIMDs";
  EXPECT_EQ(blocks("scale", 1024, 0), 2);
  EXPECT_EQ(blocks("scale", 64, 32768), 2);
  EXPECT_EQ(blocks("scale", 64, 65537), 0);
  EXPECT_EQ(blocks("uninitialised", 64, 0), 16) << "101 registers, 104 allocated: 4 of 512 fit";
}

TEST_F(HipFunctions, VariablesAreDeviceMemory) {
  hipDeviceptr_t address = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(hipModuleGetGlobal(&address, &bytes, module_, "table"), hipSuccess);
  EXPECT_EQ(bytes, 16u);
  const std::vector<int> values = {5, 6, 7, 8};
  EXPECT_EQ(hipMemcpyHtoD(address, values.data(), bytes), hipSuccess) << fwemu_last_error();
  DeviceArray<int> out(64);
  EXPECT_EQ(launch("lookup", 1, 64, out.data()), hipSuccess) << fwemu_last_error();
  const std::vector<int> read = out.read();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(read[i], values[i & 3]);
  EXPECT_EQ(hipModuleGetGlobal(&address, &bytes, module_, "chair"), hipErrorNotFound);
}

}  // namespace
