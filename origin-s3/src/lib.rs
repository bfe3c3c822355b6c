//! forebay-origin-s3
