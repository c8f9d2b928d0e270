#ifndef TESTS_EXPECT_ERROR_HPP_
#define TESTS_EXPECT_ERROR_HPP_

#include <gtest/gtest.h>

#include <regex>

#include "caffe/error.hpp"

/// The statement throws a caffe::Error, in whose text the pattern is found.
#define EXPECT_ERROR(statement, pattern)                              \
  try {                                                               \
    statement;                                                        \
    ADD_FAILURE() << "no error, expected: " << pattern;               \
  } catch (const ::caffe::Error& error) {                             \
    EXPECT_TRUE(std::regex_search(error.what(), std::regex(pattern))) \
        << error.what() << "\nwas expected to match: " << pattern;    \
  }                                                                   \
  static_assert(true, "")

#endif  // TESTS_EXPECT_ERROR_HPP_
