/*
 * Copyright (c) executorch-slice contributors.
 * All rights reserved.
 *
 * This source code is licensed under the BSD-style license found in the
 * LICENSE file in the root directory of this source tree.
 */

// Runs method `forward` of a program, whose first dim may be dynamic:
//
//   run_program model.pte 4 16
//
// runs it twice, on float inputs of 4 and of 16 rows that count up from 0.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

using executorch::aten::SizesType;
using executorch::extension::make_tensor_ptr;
using executorch::extension::Module;
using executorch::runtime::Error;
using executorch::runtime::EValue;

namespace {

void print(const EValue& value) {
  const auto& tensor = value.toTensor();
  for (const SizesType size : tensor.sizes()) {
    std::printf("%" PRId32 " ", size);
  }
  std::printf(":");
  for (ssize_t i = 0; i < tensor.numel(); ++i) {
    std::printf(" %g", tensor.const_data_ptr<float>()[i]);
  }
  std::printf("\n");
}

Error run(Module& module, SizesType rows) {
  const auto meta = module.method_meta("forward");
  ET_CHECK_OK_OR_RETURN_ERROR(meta.error());
  const auto input = meta->input_tensor_meta(0);
  ET_CHECK_OK_OR_RETURN_ERROR(input.error());
  std::vector<SizesType> sizes(input->sizes().begin(), input->sizes().end());
  sizes[0] = rows;
  std::vector<float> data(std::accumulate(
      sizes.begin(), sizes.end(), size_t{1}, std::multiplies<>()));
  std::iota(data.begin(), data.end(), 0.0f);
  const auto outputs = module.forward(make_tensor_ptr(sizes, std::move(data)));
  ET_CHECK_OK_OR_RETURN_ERROR(outputs.error());
  for (const EValue& output : *outputs) {
    print(output);
  }
  return Error::Ok;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s PROGRAM ROWS...\n", argv[0]);
    return EXIT_FAILURE;
  }
  Module module(argv[1]);
  for (int i = 2; i < argc; ++i) {
    const Error error = run(module, std::atoi(argv[i]));
    if (error != Error::Ok) {
      std::fprintf(
          stderr, "failed: %s\n", executorch::runtime::to_string(error));
      return EXIT_FAILURE;
    }
  }
  return EXIT_SUCCESS;
}
