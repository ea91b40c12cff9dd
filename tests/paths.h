// Where tests find files that were built for them or lie beside them. CMake writes the definitions that a test asks for
// with flashwave_test_paths (tests/CMakeLists.txt): a macro would name the folder in every command line, and ccache
// would know none of them in another clone.
#pragma once

namespace flashwave::paths {

extern const char* const kFakeHip;          // tests/unit_device
extern const char* const kFakeCuda;         //
extern const char* const kSystemLibraries;  // the folder of a second HIP runtime
extern const char* const kTorchHip;         // and PyTorch's
extern const char* const kTestArchive;      // tests/unit_device, for the emulator
extern const char* const kEncodings;        // tests/emulator
extern const char* const kMatrixLayouts;    //
extern const char* const kCodeObjects;      // the folder of those that its tests compile

}  // namespace flashwave::paths
