#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flaz_fuzz::run("dictionary", data));
