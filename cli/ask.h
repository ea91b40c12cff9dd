// Asking the library about a problem without making any tensor data.
#pragma once

#include <string>

#include "flashwave/flashwave.h"
#include "words.h"

namespace flashwave::cli {

struct Answer {
  fw_status status = FW_OK;
  std::string text;   // what fw_explain wrote
  std::string error;  // fw_last_error when status is not FW_OK
};
Answer ask(fw_device* device, const Case& c, fw_format format);

}  // namespace flashwave::cli
