//! The conformance suite of the Origin port.
//!
//! Each function of [`data`], [`faults`] and [`metadata`] is one test over an [`OriginWorld`]: an
//! origin instance, the store behind it, its faults, and a `step` that lets time pass. A world
//! must be fresh: an empty bucket, nothing under way. The macros
//! [`origin_conformance_fault_free!`](crate::origin_conformance_fault_free) and
//! [`origin_conformance_faults!`](crate::origin_conformance_faults) make a `#[test]` of each.

pub mod data;
pub mod faults;
pub mod metadata;
mod s3;
mod world;

pub use s3::{MonotonicClock, S3World};
pub use world::{GetOutcome, Harness, OriginFault, OriginWorld};

/// Makes one `#[test]` for each function named, over the world that `$world` makes.
///
/// `origin_conformance!(data; make_world(); right_bytes_at_all_part_sizes, ...);`
#[macro_export]
macro_rules! origin_conformance {
    ($module:ident; $world:expr; $($name:ident),+ $(,)?) => {$(
        #[test]
        fn $name() {
            $crate::conformance::origin::$module::$name($world);
        }
    )+};
}

/// All tests of the suite that need no faults, over the world that `$world` makes.
#[macro_export]
macro_rules! origin_conformance_fault_free {
    ($world:expr) => {
        $crate::origin_conformance!(
            data; $world;
            right_bytes_at_all_part_sizes,
            many_gets_at_once,
            an_overwritten_object_is_another_version,
            a_deleted_object_is_another_version,
            a_range_beyond_a_shrunken_object_is_another_version,
        );
        $crate::origin_conformance!(
            metadata; $world;
            head_tells_attributes,
            head_of_no_key_is_not_found,
            head_and_list_name_the_same_version,
            pages_tell_each_key_once,
            delimited_pages_roll_up,
            a_prefix_without_keys_is_an_empty_page,
            a_bucket_that_is_missing_is_named_so,
            odd_keys_are_listed_and_read,
        );
    };
}

/// All tests of the suite that need faults, over the world that `$world` makes.
#[macro_export]
macro_rules! origin_conformance_faults {
    ($world:expr) => {
        $crate::origin_conformance!(
            faults; $world;
            throttling_is_told_apart,
            server_errors_are_unavailable,
            a_reset_is_unavailable,
            a_reset_within_the_body_returns_the_leases,
            a_short_body_is_counted_to_the_byte,
            a_hang_ends_at_the_deadline,
            a_hang_within_the_body_ends_at_the_deadline,
            a_deadline_that_has_passed_is_a_timeout,
            cancelled_before_the_answer,
            cancelled_within_the_body,
            cancelling_what_is_not_there_changes_nothing,
            too_many_operations_are_given_back,
            the_whole_object_instead_of_the_range_is_refused,
            another_range_than_asked_for_is_refused,
            another_etag_is_another_version,
            an_object_overwritten_while_it_is_read_is_another_version,
        );
    };
}
