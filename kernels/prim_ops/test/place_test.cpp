/*
 * Copyright (c) executorch-slice contributors.
 * All rights reserved.
 *
 * This source code is licensed under the BSD-style license found in the
 * LICENSE file in the root directory of this source tree.
 */

// place_slice() and place_select() against a list of every element taken.

#include "et_slice.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include <executorch/runtime/core/error.h>
#include <gtest/gtest.h>

#include "messages.h"

using executorch::aten::DimOrderType;
using executorch::aten::SizesType;
using executorch::runtime::Error;
using executorch::runtime::Result;
using torch::executor::function::place_select;
using torch::executor::function::place_slice;
using torch::executor::function::SlicePlace;

namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

using Bound = std::optional<int64_t>;

struct Layout {
  std::vector<SizesType> sizes;
  std::vector<DimOrderType> dim_order;
};

/// Linear indices of the elements at indices `taken` of `dim`, in dim order.
std::vector<int64_t>
elements(const Layout& layout, size_t dim, const std::vector<int64_t>& taken) {
  std::vector<int64_t> found{0};
  for (const size_t i : layout.dim_order) {
    std::vector<int64_t> indices(layout.sizes[i]);
    std::iota(indices.begin(), indices.end(), 0);
    std::vector<int64_t> next;
    for (const int64_t outer : found) {
      for (const int64_t index : i == dim ? taken : indices) {
        next.push_back(outer * layout.sizes[i] + index);
      }
    }
    found = next;
  }
  return found;
}

/// Indices that Python's range(size)[start:end:step] has.
std::vector<int64_t>
indices(int64_t size, Bound start, Bound end, int64_t step) {
  const auto wrap = [size](int64_t b) { return b < 0 ? b + size : b; };
  const int64_t low = start ? std::max<int64_t>(wrap(*start), 0) : 0;
  const int64_t high = end ? wrap(*end) : size;
  std::vector<int64_t> taken;
  for (int64_t i = 0; i < size; ++i) {
    if (low <= i && i < high && (i - low) % step == 0) {
      taken.push_back(i);
    }
  }
  return taken;
}

/// Expects `place` to say where `taken` lies, or that it does not lie together.
void expect_place(
    const Result<SlicePlace>& place,
    const Layout& layout,
    size_t dim,
    const std::vector<int64_t>& taken) {
  const std::vector<int64_t> found = elements(layout, dim, taken);
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != found[0] + static_cast<int64_t>(i)) {
      ASSERT_EQ(place.error(), Error::InvalidArgument);
      return;
    }
  }
  ASSERT_EQ(place.error(), Error::Ok);
  ASSERT_EQ(place->dim, dim);
  ASSERT_EQ(place->offset, found.empty() ? 0 : found[0]);
  ASSERT_EQ(place->extent, static_cast<int64_t>(taken.size()));
}

/// Calls `test` for every layout of `rank` dims with sizes 0 to 3.
void for_each_layout(
    size_t rank,
    const std::function<void(const Layout&)>& test) {
  Layout layout{std::vector<SizesType>(rank), std::vector<DimOrderType>(rank)};
  int64_t shapes = 1;
  for (size_t i = 0; i < rank; ++i) {
    shapes *= 4;
  }
  for (int64_t shape = 0; shape < shapes; ++shape) {
    for (size_t i = 0; i < rank; ++i) {
      layout.sizes[i] = static_cast<SizesType>(shape >> (2 * i) & 3);
    }
    std::iota(layout.dim_order.begin(), layout.dim_order.end(), 0);
    do {
      test(layout);
    } while (std::next_permutation(
        layout.dim_order.begin(), layout.dim_order.end()));
  }
}

class PlaceTest : public testing::TestWithParam<size_t> {};

TEST_P(PlaceTest, SlicesLieWhereTheirElementsLie) {
  std::vector<Bound> bounds{std::nullopt};
  for (int64_t bound = -4; bound <= 4; ++bound) {
    bounds.emplace_back(bound);
  }
  for_each_layout(GetParam(), [&](const Layout& layout) {
    for (size_t dim = 0; dim < layout.sizes.size(); ++dim) {
      for (const Bound start : bounds) {
        for (const Bound end : bounds) {
          for (int64_t step = 1; step <= 3; ++step) {
            expect_place(
                place_slice(
                    {layout.sizes.data(), layout.sizes.size()},
                    {layout.dim_order.data(), layout.dim_order.size()},
                    static_cast<int64_t>(dim),
                    start,
                    end,
                    step),
                layout,
                dim,
                indices(layout.sizes[dim], start, end, step));
            ASSERT_FALSE(HasFatalFailure());
          }
        }
      }
    }
  });
}

TEST_P(PlaceTest, SelectsLieWhereTheirElementsLie) {
  for_each_layout(GetParam(), [&](const Layout& layout) {
    for (size_t dim = 0; dim < layout.sizes.size(); ++dim) {
      const int64_t size = layout.sizes[dim];
      for (int64_t index = -5; index <= 4; ++index) {
        const Result<SlicePlace> place = place_select(
            {layout.sizes.data(), layout.sizes.size()},
            {layout.dim_order.data(), layout.dim_order.size()},
            static_cast<int64_t>(dim),
            index);
        if (index < -size || index >= size) {
          ASSERT_EQ(place.error(), Error::InvalidArgument);
        } else {
          expect_place(place, layout, dim, {index < 0 ? index + size : index});
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PlaceTest, testing::Values(1, 2, 3));

class PlaceArgumentsTest : public testing::Test {
 protected:
  Result<SlicePlace> slice(int64_t dim, Bound start, Bound end, int64_t step) {
    return place_slice({sizes_, 2}, {dim_order_, 2}, dim, start, end, step);
  }

  Result<SlicePlace> select(int64_t dim, int64_t index) {
    return place_select({sizes_, 2}, {dim_order_, 2}, dim, index);
  }

  const SizesType sizes_[2] = {1, 5};
  const DimOrderType dim_order_[2] = {0, 1};
};

TEST_F(PlaceArgumentsTest, NegativeDimsCountFromTheEnd) {
  EXPECT_EQ(slice(-1, 2, 4, 1)->offset, 2);
  EXPECT_EQ(slice(-1, 2, 4, 1)->dim, 1);
  EXPECT_EQ(select(-1, 3)->offset, 3);
}

TEST_F(PlaceArgumentsTest, ExtremesDoNotOverflow) {
  for (const int64_t step : {int64_t{1}, kMax}) {
    EXPECT_EQ(slice(1, kMin, kMax, step)->extent, step == 1 ? 5 : 1);
    EXPECT_EQ(slice(1, kMax, kMin, step)->extent, 0);
    EXPECT_EQ(slice(1, kMin, kMin, step)->extent, 0);
    EXPECT_EQ(slice(1, kMax, kMax, step)->extent, 0);
  }
  EXPECT_EQ(select(1, kMin).error(), Error::InvalidArgument);
  EXPECT_EQ(select(1, kMax).error(), Error::InvalidArgument);

  const SizesType huge[] = {0, 2147483647, 2147483647, 2147483647, 5};
  const DimOrderType order[] = {0, 1, 2, 3, 4};
  EXPECT_EQ(place_slice({huge, 5}, {order, 5}, 4, 1, 3, 1)->extent, 2);
}

TEST_F(PlaceArgumentsTest, WrongDimsAndStepsAreErrorsWithAMessage) {
  for (const int64_t dim : {int64_t{2}, int64_t{-3}, kMin, kMax}) {
    EXPECT_EQ(slice(dim, 0, 1, 1).error(), Error::InvalidArgument);
    EXPECT_EQ(select(dim, 0).error(), Error::InvalidArgument);
  }
  EXPECT_EQ(place_slice({}, {}, 0, 0, 1, 1).error(), Error::InvalidArgument);
  EXPECT_EQ(take_message(), "dim 0 is out of range for a tensor of 0 dims");
  for (const int64_t step : {int64_t{0}, int64_t{-1}, kMin}) {
    EXPECT_EQ(slice(1, 0, 1, step).error(), Error::InvalidArgument);
  }
  EXPECT_EQ(slice(1, 0, 1, -2).error(), Error::InvalidArgument);
  EXPECT_EQ(take_message(), "step -2 is not positive");
  EXPECT_EQ(select(1, 5).error(), Error::InvalidArgument);
  EXPECT_EQ(take_message(), "index 5 is out of range for dim 1 of size 5");
  EXPECT_EQ(slice(1, 0, 4, 2).error(), Error::InvalidArgument);
  EXPECT_EQ(
      take_message(),
      "2 of 5 elements of dim 1 (step 2) in each of 1 rows do not lie together "
      "in memory: they need a copy");
}

} // namespace
