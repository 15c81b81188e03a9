// What the files of the border to Python share.
#pragma once

#include "model.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace outrider {

using Tokens = std::vector<std::vector<int>>;  // a list for each row

void bind_questions(nb::module_& module);

}  // namespace outrider
