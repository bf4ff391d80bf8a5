/*
 * Copyright (c) executorch-slice contributors.
 * All rights reserved.
 *
 * This source code is licensed under the BSD-style license found in the
 * LICENSE file in the root directory of this source tree.
 */

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <executorch/runtime/core/array_ref.h>
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/result.h>
#include <executorch/runtime/core/span.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>

namespace torch {
namespace executor {
namespace function {

/// Where a slice or a select lies in the memory of the tensor it is taken from.
struct SlicePlace {
  /// The dim it is taken along, from 0 to rank - 1.
  size_t dim;
  /// Elements from the tensor's first to the result's first; 0 if the result
  /// is empty. Never past the tensor's end.
  int64_t offset;
  /// Size of the result along `dim`, in elements. A select has 1.
  int64_t extent;
};

/**
 * Finds the slice `start:end:step` of dim `dim` in the memory of a tensor.
 *
 * `dim`, `start`, `end` and `step` mean what they mean to ATen's
 * `slice.Tensor(self, int dim, SymInt? start, SymInt? end, SymInt step)`:
 * negative ones count from the end, bounds are clamped to the dim, a missing
 * bound is the dim's own.
 *
 * The slice must lie together in memory. That is so if it is empty, if it takes
 * the whole dim, or if every dim that is outside of `dim` in the dim order has
 * size 1 and the slice takes neighbours: `step` is 1 or it has one element.
 *
 * @param[in] sizes Sizes of the tensor, whose elements are dense.
 * @param[in] dim_order Its dims from outermost to innermost, each once.
 *
 * @retval InvalidArgument `dim` is out of range, `step` is not positive, or the
 *     slice does not lie together. Logged.
 */
::executorch::runtime::Result<SlicePlace> place_slice(
    ::executorch::aten::ArrayRef<::executorch::aten::SizesType> sizes,
    ::executorch::aten::ArrayRef<::executorch::aten::DimOrderType> dim_order,
    int64_t dim,
    std::optional<int64_t> start,
    std::optional<int64_t> end,
    int64_t step);

/**
 * Finds the part of a tensor at `index` of dim `dim`, as ATen's
 * `select.int(self, int dim, SymInt index)`. A negative index counts from the
 * end. See place_slice() for the rest.
 *
 * @retval InvalidArgument `dim` or `index` is out of range, or the part does
 *     not lie together. Logged.
 */
::executorch::runtime::Result<SlicePlace> place_select(
    ::executorch::aten::ArrayRef<::executorch::aten::SizesType> sizes,
    ::executorch::aten::ArrayRef<::executorch::aten::DimOrderType> dim_order,
    int64_t dim,
    int64_t index);

/**
 * `executorch_prim::et_slice(self, dim, start?, end?, step, out)`: makes `out`
 * the slice of `self`, without a copy. Resizes `out`, then points it into the
 * memory of `self`. `out` must not be written where `self` is a constant.
 *
 * Fails the method, with a message and with `out` as it was, if an argument has
 * the wrong type, place_slice() finds no place, or `out` has another dtype,
 * rank or order of dims in memory than the slice, or cannot be resized to it.
 *
 * Neither allocates nor throws.
 */
void et_slice(
    ::executorch::runtime::KernelRuntimeContext& context,
    ::executorch::runtime::Span<::executorch::runtime::EValue*> stack);

/**
 * `executorch_prim::et_select(self, dim, index, out)`: as et_slice(), for
 * place_select(). `out` has one dim less than `self`.
 */
void et_select(
    ::executorch::runtime::KernelRuntimeContext& context,
    ::executorch::runtime::Span<::executorch::runtime::EValue*> stack);

} // namespace function
} // namespace executor
} // namespace torch
