#ifndef CAFFE_UTIL_LMDB_PAGES_HPP_
#define CAFFE_UTIL_LMDB_PAGES_HPP_

#include <string>

namespace caffe {

/**
 * @brief What is wrong with the pages of an LMDB, such as "damaged: page 7 has
 *        ..."; empty if all of its records can be reached and read.
 *
 * LMDB maps its file and follows the page numbers, offsets and sizes in it
 * without a check, so a damaged one ends the process with a signal. This reads
 * the pages of the B-tree, but not those that hold one large record. It does
 * not look at what is in records. A file that cannot be opened is left to LMDB,
 * which says why.
 *
 * @param source the LMDB's folder, or its data.mdb
 */
std::string LMDBFault(const std::string& source);

}  // namespace caffe

#endif  // CAFFE_UTIL_LMDB_PAGES_HPP_
