/*
 * Copyright (c) executorch-slice contributors.
 * All rights reserved.
 *
 * This source code is licensed under the BSD-style license found in the
 * LICENSE file in the root directory of this source tree.
 */

#include "et_slice.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstring>

#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/log.h>

namespace torch {
namespace executor {
namespace function {

namespace {

using ::executorch::aten::ArrayRef;
using ::executorch::aten::DimOrderType;
using ::executorch::aten::SizesType;
using ::executorch::aten::StridesType;
using ::executorch::aten::Tensor;
using ::executorch::runtime::Error;
using ::executorch::runtime::EValue;
using ::executorch::runtime::get_registered_kernels;
using ::executorch::runtime::Kernel;
using ::executorch::runtime::KernelRuntimeContext;
using ::executorch::runtime::kTensorDimensionLimit;
using ::executorch::runtime::register_kernel;
using ::executorch::runtime::Result;
using ::executorch::runtime::Span;

using DimOrder = std::array<DimOrderType, kTensorDimensionLimit>;

bool has_zero(ArrayRef<SizesType> sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

Result<size_t> wrap_dim(int64_t dim, size_t rank) {
  const int64_t dims = static_cast<int64_t>(rank);
  ET_CHECK_OR_RETURN_ERROR(
      -dims <= dim && dim < dims,
      InvalidArgument,
      "dim %" PRId64 " is out of range for a tensor of %zu dims",
      dim,
      rank);
  return static_cast<size_t>(dim < 0 ? dim + dims : dim);
}

/// Places `extent` elements of dim `dim` that start at `start`, `step` apart.
Result<SlicePlace> place(
    ArrayRef<SizesType> sizes,
    ArrayRef<DimOrderType> dim_order,
    size_t dim,
    int64_t start,
    int64_t extent,
    int64_t step) {
  if (extent == 0 || has_zero(sizes)) {
    return SlicePlace{dim, 0, extent};
  }
  int64_t outer = 1;
  int64_t inner = 1;
  int64_t* elements = &outer;
  for (const DimOrderType i : dim_order) {
    if (i == dim) {
      elements = &inner;
    } else {
      *elements *= sizes[i];
    }
  }
  ET_CHECK_OR_RETURN_ERROR(
      extent == sizes[dim] || (outer == 1 && (step == 1 || extent == 1)),
      InvalidArgument,
      "%" PRId64 " of %" PRId64 " elements of dim %zu (step %" PRId64
      ") in each of %" PRId64
      " rows do not lie together in memory: they need a copy",
      extent,
      static_cast<int64_t>(sizes[dim]),
      dim,
      step,
      outer);
  return SlicePlace{dim, start * inner, extent};
}

/// Whether `out`, resized to `sizes`, lays its elements out as the result lies
/// in `self`. Dims of size 1 have no order in memory.
bool same_layout(
    const Tensor& self,
    const SlicePlace& place,
    const Tensor& out,
    const DimOrder& out_order,
    ArrayRef<SizesType> sizes) {
  if (has_zero(sizes)) {
    return true;
  }
  std::array<StridesType, kTensorDimensionLimit> strides;
  dim_order_to_stride_nocheck(
      sizes.data(), out_order.data(), sizes.size(), strides.data());
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const bool after_dropped = self.dim() > out.dim() && dim >= place.dim;
    const size_t self_dim = dim + (after_dropped ? 1 : 0);
    if (sizes[dim] > 1 && strides[dim] != self.strides()[self_dim]) {
      return false;
    }
  }
  return true;
}

/// Makes `out` the part of `self` that `find_place(sizes, dim_order)` gives,
/// which has `dropped` dims less.
template <typename FindPlace>
Error alias(
    const Tensor& self,
    const Tensor& out,
    size_t dropped,
    FindPlace find_place) {
  const size_t rank = self.dim();
  const size_t out_rank = out.dim();
  ET_CHECK_OR_RETURN_ERROR(
      rank <= kTensorDimensionLimit && rank == out_rank + dropped,
      InvalidArgument,
      "self has %zu dims, out has %zu",
      rank,
      out_rank);
  ET_CHECK_OR_RETURN_ERROR(
      self.scalar_type() == out.scalar_type(),
      InvalidArgument,
      "self has dtype %d, out has %d",
      static_cast<int>(self.scalar_type()),
      static_cast<int>(out.scalar_type()));
  DimOrder order;
  DimOrder out_order;
  ET_CHECK_OK_OR_RETURN_ERROR(get_dim_order(self, order.data(), rank));
  ET_CHECK_OK_OR_RETURN_ERROR(get_dim_order(out, out_order.data(), out_rank));

  ET_ASSIGN_OR_RETURN(
      place,
      find_place(self.sizes(), ArrayRef<DimOrderType>(order.data(), rank)));
  std::array<SizesType, kTensorDimensionLimit> buffer;
  std::copy(self.sizes().begin(), self.sizes().end(), buffer.begin());
  buffer[place.dim] = static_cast<SizesType>(place.extent);
  if (dropped > 0) {
    const auto sliced = buffer.begin() + place.dim;
    std::copy(sliced + dropped, buffer.begin() + rank, sliced);
  }
  const ArrayRef<SizesType> sizes(buffer.data(), out_rank);
  ET_CHECK_OR_RETURN_ERROR(
      same_layout(self, place, out, out_order, sizes),
      InvalidArgument,
      "the dims of out come in another order in memory than those of self");

  uint8_t* const data = static_cast<uint8_t*>(self.mutable_data_ptr());
  ET_CHECK_OR_RETURN_ERROR(
      data != nullptr || self.numel() == 0, InvalidState, "self has no memory");
  ET_CHECK_OK_OR_RETURN_ERROR(resize_tensor(out, sizes));
  return ::executorch::runtime::internal::set_tensor_data(
      out, data + place.offset * self.element_size(), out.nbytes());
}

Error slice(Span<EValue*> stack) {
  ET_CHECK_OR_RETURN_ERROR(
      stack.size() == 6,
      InvalidProgram,
      "et_slice has 6 arguments, not %zu",
      stack.size());
  ET_ASSIGN_OR_RETURN(self, stack[0]->tryToTensor(), "self: not a tensor");
  ET_ASSIGN_OR_RETURN(dim, stack[1]->tryToInt(), "dim: not an int");
  ET_ASSIGN_OR_RETURN(
      start, stack[2]->tryToOptional<int64_t>(), "start: not an int or None");
  ET_ASSIGN_OR_RETURN(
      end, stack[3]->tryToOptional<int64_t>(), "end: not an int or None");
  ET_ASSIGN_OR_RETURN(step, stack[4]->tryToInt(), "step: not an int");
  ET_ASSIGN_OR_RETURN(out, stack[5]->tryToTensor(), "out: not a tensor");
  return alias(self, out, 0, [&](auto sizes, auto dim_order) {
    return place_slice(sizes, dim_order, dim, start, end, step);
  });
}

Error select(Span<EValue*> stack) {
  ET_CHECK_OR_RETURN_ERROR(
      stack.size() == 4,
      InvalidProgram,
      "et_select has 4 arguments, not %zu",
      stack.size());
  ET_ASSIGN_OR_RETURN(self, stack[0]->tryToTensor(), "self: not a tensor");
  ET_ASSIGN_OR_RETURN(dim, stack[1]->tryToInt(), "dim: not an int");
  ET_ASSIGN_OR_RETURN(index, stack[2]->tryToInt(), "index: not an int");
  ET_ASSIGN_OR_RETURN(out, stack[3]->tryToTensor(), "out: not a tensor");
  return alias(self, out, 1, [&](auto sizes, auto dim_order) {
    return place_select(sizes, dim_order, dim, index);
  });
}

/// Registers `kernel` unless the runtime has it: a second one would abort.
bool register_once(const Kernel& kernel) {
  for (const Kernel& known : get_registered_kernels()) {
    if (std::strcmp(known.name_, kernel.name_) == 0) {
      return false;
    }
  }
  return register_kernel(kernel) == Error::Ok;
}

const bool registered[] = {
    register_once(Kernel("executorch_prim::et_slice.default", et_slice)),
    register_once(Kernel("executorch_prim::et_select.default", et_select)),
};

} // namespace

Result<SlicePlace> place_slice(
    ArrayRef<SizesType> sizes,
    ArrayRef<DimOrderType> dim_order,
    int64_t dim,
    std::optional<int64_t> start,
    std::optional<int64_t> end,
    int64_t step) {
  ET_ASSIGN_OR_RETURN(wrapped, wrap_dim(dim, sizes.size()));
  ET_CHECK_OR_RETURN_ERROR(
      step > 0, InvalidArgument, "step %" PRId64 " is not positive", step);
  const int64_t size = sizes[wrapped];
  const auto clamp = [size](int64_t bound) {
    return std::clamp<int64_t>(bound < 0 ? bound + size : bound, 0, size);
  };
  const int64_t first = clamp(start.value_or(0));
  const int64_t length = clamp(end.value_or(size)) - first;
  const int64_t extent = length > 0 ? (length - 1) / step + 1 : 0;
  return place(sizes, dim_order, wrapped, first, extent, step);
}

Result<SlicePlace> place_select(
    ArrayRef<SizesType> sizes,
    ArrayRef<DimOrderType> dim_order,
    int64_t dim,
    int64_t index) {
  ET_ASSIGN_OR_RETURN(wrapped, wrap_dim(dim, sizes.size()));
  const int64_t size = sizes[wrapped];
  ET_CHECK_OR_RETURN_ERROR(
      -size <= index && index < size,
      InvalidArgument,
      "index %" PRId64 " is out of range for dim %zu of size %" PRId64,
      index,
      wrapped,
      size);
  const int64_t start = index < 0 ? index + size : index;
  return place(sizes, dim_order, wrapped, start, 1, 1);
}

void et_slice(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Error error = slice(stack);
  if (error != Error::Ok) {
    context.fail(error);
  }
}

void et_select(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Error error = select(stack);
  if (error != Error::Ok) {
    context.fail(error);
  }
}

} // namespace function
} // namespace executor
} // namespace torch
