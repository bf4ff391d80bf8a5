/*
 * Copyright (c) executorch-slice contributors.
 * All rights reserved.
 *
 * This source code is licensed under the BSD-style license found in the
 * LICENSE file in the root directory of this source tree.
 */

// The registered kernels, called as the runtime calls them.

#include "et_slice.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <executorch/extension/tensor/tensor_ptr.h>
#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <gtest/gtest.h>

#include "messages.h"

using executorch::aten::DimOrderType;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::StridesType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::aten::TensorShapeDynamism;
using executorch::extension::make_tensor_ptr;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::get_op_function_from_registry;
using executorch::runtime::get_registered_kernels;
using executorch::runtime::KernelRuntimeContext;

namespace {

constexpr char kSlice[] = "executorch_prim::et_slice.default";
constexpr char kSelect[] = "executorch_prim::et_select.default";

using Sizes = std::vector<SizesType>;
using DimOrder = std::vector<DimOrderType>;
using Bound = std::optional<int64_t>;

class EtSliceTest : public testing::Test {
 protected:
  EtSliceTest() {
    std::iota(std::begin(memory_), std::end(memory_), 0.0f);
  }

  /// A tensor of `memory_`, whose elements are their own indices.
  TensorPtr base(Sizes sizes, DimOrder dim_order = {}) {
    return make_tensor_ptr(
        std::move(sizes), memory_, std::move(dim_order), {}, ScalarType::Float);
  }

  /// A tensor that can be resized to at most `sizes`, as lowering makes it.
  TensorPtr out(
      Sizes sizes,
      DimOrder dim_order = {},
      ScalarType dtype = ScalarType::Float,
      TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
    return make_tensor_ptr(
        std::move(sizes),
        nullptr,
        std::move(dim_order),
        {},
        dtype,
        executorch::aten::Device(executorch::aten::DeviceType::CPU),
        dynamism);
  }

  static Error call(const char* name, std::vector<EValue> arguments) {
    std::vector<EValue*> stack;
    for (EValue& argument : arguments) {
      stack.push_back(&argument);
    }
    KernelRuntimeContext context;
    get_op_function_from_registry(name).get()(
        context, {stack.data(), stack.size()});
    return context.failure_state();
  }

  static EValue to_evalue(Bound bound) {
    return bound ? EValue(*bound) : EValue();
  }

  static Error slice(
      const TensorPtr& self,
      int64_t dim,
      Bound start,
      Bound end,
      int64_t step,
      const TensorPtr& out) {
    return call(
        kSlice, {self, dim, to_evalue(start), to_evalue(end), step, out});
  }

  static Error select(
      const TensorPtr& self,
      int64_t dim,
      int64_t index,
      const TensorPtr& out) {
    return call(kSelect, {self, dim, index, out});
  }

  /// Expects `out` to be `sizes` of the memory from element `offset` on.
  void expect_alias(const TensorPtr& out, int64_t offset, const Sizes& sizes) {
    EXPECT_EQ(out->const_data_ptr(), memory_ + offset);
    EXPECT_EQ(Sizes(out->sizes().begin(), out->sizes().end()), sizes);
  }

  /// Expects `error`, a message with `words`, and `out` as it was.
  void expect_failure(
      Error error,
      Error expected,
      const std::string& words,
      const TensorPtr& out,
      const Sizes& sizes) {
    EXPECT_EQ(error, expected);
    EXPECT_NE(take_message().find(words), std::string::npos) << words;
    EXPECT_EQ(out->const_data_ptr(), nullptr);
    EXPECT_EQ(Sizes(out->sizes().begin(), out->sizes().end()), sizes);
  }

  float memory_[256];
};

TEST_F(EtSliceTest, SliceOfRows) {
  const TensorPtr result = out({8, 4});
  EXPECT_EQ(slice(base({8, 4}), 0, 2, 5, 1, result), Error::Ok);
  expect_alias(result, 8, {3, 4});
  EXPECT_EQ(slice(base({8, 4}), 0, {}, {}, 1, result), Error::Ok);
  expect_alias(result, 0, {8, 4});
  EXPECT_EQ(slice(base({8, 4}), -2, -99, -6, 1, result), Error::Ok);
  expect_alias(result, 0, {2, 4});
  EXPECT_EQ(slice(base({8, 4}), 0, 7, 99, 3, result), Error::Ok);
  expect_alias(result, 28, {1, 4});
}

TEST_F(EtSliceTest, SliceUnderLeadingOnes) {
  const TensorPtr result = out({1, 1, 8, 4});
  EXPECT_EQ(slice(base({1, 1, 8, 4}), 2, 3, {}, 1, result), Error::Ok);
  expect_alias(result, 12, {1, 1, 5, 4});
}

TEST_F(EtSliceTest, SliceOfChannelsLast) {
  const DimOrder channels_last{0, 2, 3, 1};
  const TensorPtr result = out({1, 3, 4, 5}, channels_last);
  const TensorPtr self = base({1, 3, 4, 5}, channels_last);
  EXPECT_EQ(slice(self, 2, 1, 3, 1, result), Error::Ok);
  expect_alias(result, 15, {1, 3, 2, 5});
}

TEST_F(EtSliceTest, DimsOfSizeOneHaveNoOrder) {
  const TensorPtr result = out({2, 1, 4, 5});
  const TensorPtr self = base({6, 1, 4, 5}, {0, 2, 3, 1});
  EXPECT_EQ(slice(self, 0, 1, 3, 1, result), Error::Ok);
  expect_alias(result, 20, {2, 1, 4, 5});
}

TEST_F(EtSliceTest, Select) {
  const TensorPtr rows = out({4, 5});
  EXPECT_EQ(select(base({3, 4, 5}), 0, -1, rows), Error::Ok);
  expect_alias(rows, 40, {4, 5});
  EXPECT_EQ(select(base({1, 4, 5}), 1, 2, out({1, 5})), Error::Ok);
  const TensorPtr scalar = out({});
  EXPECT_EQ(select(base({9}), 0, 7, scalar), Error::Ok);
  expect_alias(scalar, 7, {});
  const TensorPtr plane = out({4, 3}, {1, 0});
  EXPECT_EQ(select(base({2, 4, 3}, {0, 2, 1}), 0, 1, plane), Error::Ok);
  expect_alias(plane, 12, {4, 3});
}

TEST_F(EtSliceTest, EmptyResults) {
  const TensorPtr result = out({8, 4});
  EXPECT_EQ(slice(base({8, 4}), 0, 5, 2, 1, result), Error::Ok);
  expect_alias(result, 0, {0, 4});
  EXPECT_EQ(slice(base({8, 4}), 1, 9, {}, 1, result), Error::Ok);
  expect_alias(result, 0, {8, 0});
  const TensorPtr nothing = out({0, 4});
  EXPECT_EQ(slice(nothing, 0, 0, 1, 1, result), Error::Ok);
  EXPECT_EQ(result->const_data_ptr(), nullptr);
  EXPECT_EQ(result->numel(), 0);
}

TEST_F(EtSliceTest, EveryItemSize) {
  for (const ScalarType dtype :
       {ScalarType::Bool,
        ScalarType::Char,
        ScalarType::Half,
        ScalarType::Int,
        ScalarType::Long,
        ScalarType::Double}) {
    const TensorPtr self = make_tensor_ptr({6, 2}, memory_, dtype);
    const TensorPtr result = out({6, 2}, {}, dtype);
    EXPECT_EQ(slice(self, 0, 3, 5, 1, result), Error::Ok);
    EXPECT_EQ(
        static_cast<const char*>(result->const_data_ptr()),
        reinterpret_cast<const char*>(memory_) + 6 * self->element_size());
    EXPECT_EQ(result->nbytes(), 4u * self->element_size());
  }
}

TEST_F(EtSliceTest, ConstantsAreReadOnly) {
  const std::vector<float> before(memory_, memory_ + 256);
  const TensorPtr result = out({8, 4});
  EXPECT_EQ(slice(base({8, 4}), 0, 2, 5, 1, result), Error::Ok);
  EXPECT_EQ(std::memcmp(memory_, before.data(), sizeof(memory_)), 0);
}

TEST_F(EtSliceTest, WhatDoesNotLieTogetherFails) {
  const TensorPtr result = out({8, 4});
  expect_failure(
      slice(base({8, 4}), 1, 1, 3, 1, result),
      Error::InvalidArgument,
      "do not lie together in memory",
      result,
      {8, 4});
  expect_failure(
      slice(base({8, 4}), 0, 0, 8, 2, result),
      Error::InvalidArgument,
      "do not lie together in memory",
      result,
      {8, 4});
  const TensorPtr column = out({8});
  expect_failure(
      select(base({8, 4}), 1, 0, column),
      Error::InvalidArgument,
      "do not lie together in memory",
      column,
      {8});
}

TEST_F(EtSliceTest, WrongOutFails) {
  const TensorPtr ints = out({8, 4}, {}, ScalarType::Int);
  expect_failure(
      slice(base({8, 4}), 0, 1, 3, 1, ints),
      Error::InvalidArgument,
      "self has dtype 6, out has 3",
      ints,
      {8, 4});
  const TensorPtr flat = out({32});
  expect_failure(
      slice(base({8, 4}), 0, 1, 3, 1, flat),
      Error::InvalidArgument,
      "self has 2 dims, out has 1",
      flat,
      {32});
  const TensorPtr same_rank = out({8, 4});
  expect_failure(
      select(base({8, 4}), 0, 1, same_rank),
      Error::InvalidArgument,
      "self has 2 dims, out has 2",
      same_rank,
      {8, 4});
  const TensorPtr transposed = out({8, 4}, {1, 0});
  expect_failure(
      slice(base({8, 4}), 0, 1, 3, 1, transposed),
      Error::InvalidArgument,
      "another order in memory",
      transposed,
      {8, 4});
}

TEST_F(EtSliceTest, OutThatCannotBeResizedFails) {
  const TensorPtr small = out({2, 4});
  expect_failure(
      slice(base({8, 4}), 0, 1, 4, 1, small),
      Error::NotSupported,
      "",
      small,
      {2, 4});
  const TensorPtr fixed =
      out({2, 4}, {}, ScalarType::Float, TensorShapeDynamism::STATIC);
  expect_failure(
      slice(base({8, 4}), 0, 1, 2, 1, fixed),
      Error::NotSupported,
      "",
      fixed,
      {2, 4});
  EXPECT_EQ(slice(base({8, 4}), 0, 1, 3, 1, fixed), Error::Ok);
  expect_alias(fixed, 4, {2, 4});
}

TEST_F(EtSliceTest, BaseWithoutMemoryFails) {
  const TensorPtr result = out({8, 4});
  expect_failure(
      slice(out({8, 4}), 0, 1, 3, 1, result),
      Error::InvalidState,
      "self has no memory",
      result,
      {8, 4});
}

TEST_F(EtSliceTest, MostDims) {
  const TensorPtr result = out(Sizes(16, 1));
  EXPECT_EQ(slice(base(Sizes(16, 1)), 15, 0, 1, 1, result), Error::Ok);
  expect_alias(result, 0, Sizes(16, 1));

  Sizes sizes(17, 1);
  DimOrder dim_order(17);
  std::iota(dim_order.begin(), dim_order.end(), 0);
  std::vector<StridesType> strides(17, 1);
  TensorImpl impl(
      ScalarType::Float,
      17,
      sizes.data(),
      memory_,
      dim_order.data(),
      strides.data());
  const EValue many{Tensor(&impl)};
  const EValue zero(int64_t{0});
  const EValue one(int64_t{1});
  EXPECT_EQ(
      call(kSlice, {many, zero, zero, one, one, many}), Error::InvalidArgument);
  EXPECT_EQ(take_message(), "self has 17 dims, out has 17");
}

TEST_F(EtSliceTest, WrongArgumentsFail) {
  const EValue one(int64_t{1});
  const TensorPtr self = base({8, 4});
  const TensorPtr result = out({8, 4});
  const std::vector<EValue> right{self, one, one, one, one, result};
  for (size_t i = 0; i < right.size(); ++i) {
    std::vector<EValue> wrong = right;
    wrong[i] = EValue(1.5);
    expect_failure(
        call(kSlice, wrong), Error::InvalidType, ": not a", result, {8, 4});
  }
  const std::vector<EValue> right_select{self, one, one, result};
  for (size_t i = 0; i < right_select.size(); ++i) {
    std::vector<EValue> wrong = right_select;
    wrong[i] = EValue();
    expect_failure(
        call(kSelect, wrong), Error::InvalidType, ": not a", result, {8, 4});
  }
  expect_failure(
      call(kSlice, {self, one, one, one, result}),
      Error::InvalidProgram,
      "6 arguments, not 5",
      result,
      {8, 4});
  expect_failure(
      call(kSelect, {}), Error::InvalidProgram, "4 arguments", result, {8, 4});
}

TEST(RegistrationTest, SecondLibraryIsHarmless) {
  ASSERT_NE(dlopen(ET_SLICE_LIBRARY, RTLD_NOW | RTLD_LOCAL), nullptr)
      << dlerror();
  for (const char* name : {kSlice, kSelect}) {
    int count = 0;
    for (const auto& kernel : get_registered_kernels()) {
      count += std::strcmp(kernel.name_, name) == 0 ? 1 : 0;
    }
    EXPECT_EQ(count, 1) << name;
  }
}

} // namespace
