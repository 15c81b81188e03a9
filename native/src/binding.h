// What the files of the border to Python share.
#pragma once

#include "model.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace outrider {

using Tokens = std::vector<std::vector<int>>;  // a list for each row

ModelSpec read_model(const nb::dict& values);
DrafterSpec read_drafter(const nb::dict& values, const ModelSpec& target);
CtcSpec read_ctc(const nb::dict& values, const ModelSpec& target);

void bind_questions(nb::module_& module);

}  // namespace outrider
