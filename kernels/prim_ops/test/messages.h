/*
 * Copyright (c) executorch-slice contributors.
 * All rights reserved.
 *
 * This source code is licensed under the BSD-style license found in the
 * LICENSE file in the root directory of this source tree.
 */

#pragma once

#include <string>
#include <utility>

#include <executorch/runtime/platform/platform.h>

/// The runtime's last message. They are kept off stderr.
inline std::string& last_message() {
  static std::string message;
  return message;
}

inline std::string take_message() {
  return std::exchange(last_message(), {});
}

inline const bool messages_are_kept =
    executorch::runtime::register_pal(executorch::runtime::PalImpl::create(
        [](et_timestamp_t,
           et_pal_log_level_t,
           const char*,
           const char*,
           size_t,
           const char* message,
           size_t length) { last_message().assign(message, length); },
        __FILE__));
