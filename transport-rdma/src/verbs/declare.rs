//! How C's structures, numbers and functions are declared here, so that a test can compare them with the headers.

/// Defines a structure, and tells the test its fields.
macro_rules! structures {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(non_camel_case_types)]
            pub(super) struct $name { $(pub $field: $type,)* }

            impl $name {
                /// All bits zero, as C programs begin.
                #[allow(dead_code)]
                pub(super) fn zeroed() -> $name {
                    // SAFETY: all fields are numbers, raw pointers and arrays and structures of those, for each of
                    // which zero is a value.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        /// Name, length, and the place of each field.
        #[cfg(test)]
        fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                size_of::<$name>(),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*]
        }
    };
}

/// Structures of which only the beginning is read are made by the library alone.
macro_rules! beginnings {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[allow(non_camel_case_types)]
            pub(super) struct $name { $(pub $field: $type,)* _rest: [u8; 0] }
        )*

        #[cfg(test)]
        fn layouts_of_beginnings() -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*]
        }
    };
}

/// Defines constants, and tells the test their names and values.
macro_rules! numbers {
    ($($name:ident = $value:expr;)*) => {
        $(pub(super) const $name: u32 = $value;)*

        #[cfg(test)]
        const NUMBERS: &[(&str, u32)] = &[$((stringify!($name), $name),)*];
    };
}

/// Defines a table of a library's functions, and how it is filled.
macro_rules! functions {
    ($(#[$doc:meta])* struct $table:ident { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?,)* }) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            fn with(handle: *mut std::ffi::c_void, file: &std::ffi::CStr) -> Result<$table, crate::VerbsError> {
                Ok($table {
                    $($name: {
                        let found = super::library::symbol(handle, file, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the address is not null and is that of the function which the library's header
                        // declares with this name and these types.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found) }
                    },)*
                })
            }
        }

        /// Name, types of the arguments, and of the result.
        #[cfg(test)]
        pub(super) fn signatures() -> Vec<(&'static str, Vec<&'static str>, &'static str)> {
            vec![$((
                stringify!($name),
                vec![$(stringify!($argument)),*],
                concat!($(stringify!($result))?),
            ),)*]
        }
    };
}

#[cfg(test)]
pub(super) mod tests {
    use std::fmt::Write as _;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// A C program that compiles only where a header says what is declared here.
    pub(in crate::verbs) struct Comparison(pub String);

    impl Comparison {
        pub(in crate::verbs) fn with(header: &str) -> Comparison {
            Comparison(format!("#include <stddef.h>\n#include <{header}>\n"))
        }

        pub(in crate::verbs) fn expect(&mut self, what: &str, value: usize) {
            writeln!(self.0, "_Static_assert({what} == {value}, \"{what}\");").unwrap();
        }

        pub(in crate::verbs) fn places(&mut self, structure: &str, fields: &[(&str, usize)]) {
            for (field, at) in fields {
                self.expect(&format!("offsetof(struct {structure}, {field})"), *at);
            }
        }
    }

    impl Comparison {
        /// Declares functions once more: the compiler refuses other types than the header's.
        pub(in crate::verbs) fn functions(&mut self, signatures: Vec<(&str, Vec<&str>, &str)>) {
            for (name, arguments, result) in signatures {
                let arguments: Vec<String> = arguments.into_iter().map(c_type).collect();
                let arguments = match arguments.is_empty() {
                    true => String::from("void"),
                    false => arguments.join(", "),
                };
                // In brackets, so that no macro of this name is meant.
                writeln!(self.0, "{} ({name})({arguments});", c_type(result)).unwrap();
            }
        }
    }

    fn c_type(rust: &str) -> String {
        if let Some(target) = rust.strip_prefix("*mut ") {
            return format!("{} *", c_type(target));
        }
        if let Some(target) = rust.strip_prefix("*const ") {
            return format!("const {} *", c_type(target));
        }
        let known = match rust {
            "" | "c_void" => "void",
            "c_int" => "int",
            "c_uint" => "unsigned int",
            "c_char" => "char",
            "u8" => "uint8_t",
            "u16" => "uint16_t",
            "u32" => "uint32_t",
            "usize" => "size_t",
            // Another type than `uint64_t`, though as long; used for names of devices only.
            "u64" => "__be64",
            structure => return format!("struct {structure}"),
        };
        known.into()
    }

    /// Whether a program compiles that only includes a header, from the package `package`.
    pub(in crate::verbs) fn is_there(header: &str, package: &str) -> bool {
        let there = compiler_says(&Comparison::with(header).0).is_empty();
        if !there {
            println!(
                "SKIPPED: no {header} here (Debian: {package}): declarations were not compared"
            );
        }
        there
    }

    /// What the compiler says of a program; empty when it takes it.
    pub(in crate::verbs) fn compiler_says(program: &str) -> String {
        let mut compiler = Command::new("cc")
            .args(["-fsyntax-only", "-x", "c", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("cc, which the build needs too");
        compiler
            .stdin
            .take()
            .unwrap()
            .write_all(program.as_bytes())
            .unwrap();
        let done = compiler.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.success(), !said.contains("error"), "{said}");
        if done.status.success() {
            String::new()
        } else {
            said
        }
    }
}
