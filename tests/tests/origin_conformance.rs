//! The Origin port's conformance suite over `S3Origin` and the embedded server.

use forebay_tests::conformance::origin::S3World;
use forebay_tests::{origin_conformance, origin_conformance_fault_free, origin_conformance_faults};

origin_conformance_fault_free!(S3World::embedded());
origin_conformance_faults!(S3World::embedded());
origin_conformance!(metadata; S3World::embedded(); odder_keys_are_listed_and_read);
