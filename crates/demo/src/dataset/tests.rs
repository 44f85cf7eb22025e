//! Images of small test trees.

use super::*;
use std::os::unix::fs::symlink;

fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    fs::create_dir_all(root.join("data/deep/er")).expect("folders");
    let mut random = Random::stream(1, 0);
    for number in 0..40 {
        let mut data = vec![0; 400_000 + number * 1111];
        random.fill(&mut data);
        let name = if number % 2 == 0 {
            format!("data/f{number}")
        } else {
            format!("data/deep/er/f{number}")
        };
        fs::write(root.join(name), data).expect("a file");
    }
    fs::write(root.join("data/tiny"), b"less than a block").expect("a file");
    fs::write(root.join("data/zeros"), vec![0; 5 * BLOCK_BYTES]).expect("a file");
    fs::hard_link(root.join("data/f0"), root.join("data/again")).expect("a link");
    symlink("/etc/passwd", root.join("data/link")).expect("a link");
    symlink(".", root.join("data/loop")).expect("a link");
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("data/pipe"), rustix::fs::Mode::RUSR).expect("a pipe");
    folder
}

#[test]
fn the_image_contains_the_files_and_is_reproducible() {
    let folder = tree();
    let build = |name: &str| {
        let image = folder.path().join(name);
        DataSet::from_folders(
            &[folder.path().join("data")],
            12 << 20,
            &image,
            &Interrupt::default(),
        )
        .expect("builds")
    };
    let (set, again) = (build("one.img"), build("two.img"));
    assert_eq!(set.checksums, again.checksums);
    assert_eq!(set.pieces, again.pieces);

    let bytes = fs::read(&set.image).expect("the image");
    assert_eq!(bytes.len() as u64, set.summary.bytes);
    assert!(
        set.summary.bytes <= 12 << 20 && set.summary.bytes > 11 << 20,
        "{}",
        set.summary.bytes
    );
    let sums: Vec<u32> = bytes.chunks(BLOCK_BYTES).map(checksum).collect();
    assert_eq!(sums, set.checksums);
    // 40 files and the zeros, without the tiny file, the links, the pipe, and the second name of an inode.
    assert_eq!(set.summary.candidates, 41);
    let mut next = 0;
    for piece in &set.pieces {
        assert_eq!(piece.first, next);
        assert!((1..=PIECE_BLOCKS_MAX).contains(&piece.blocks));
        next += piece.blocks;
    }
    assert_eq!(next, set.blocks());
    let share: f64 = set.summary.folders.iter().map(|(_, share)| share).sum();
    assert!((share - 1.0).abs() < 1e-9, "{:?}", set.summary.folders);
}

#[test]
fn all_files_are_used_if_they_fit() {
    let folder = tree();
    let image = folder.path().join("image");
    let set = DataSet::from_folders(
        &[folder.path().join("data")],
        1 << 30,
        &image,
        &Interrupt::default(),
    )
    .expect("builds");
    assert_eq!(set.summary.files, 41);
    assert_eq!(set.summary.zero_blocks, 5);
}

#[test]
fn too_little_data_and_missing_directories_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let build = |data: &Path| {
        let _ = fs::remove_file(folder.path().join("image"));
        DataSet::from_folders(
            &[data.to_owned()],
            1 << 30,
            &folder.path().join("image"),
            &Interrupt::default(),
        )
    };
    assert!(matches!(build(folder.path()), Err(DemoError::NoData { .. })));
    let error = build(&folder.path().join("absent")).expect_err("absent");
    assert!(error.to_string().contains("absent"), "{error}");
}

#[test]
fn an_interrupt_stops_the_walk() {
    let folder = tree();
    let interrupt = Interrupt::default();
    interrupt.raise();
    let result = DataSet::from_folders(
        &[folder.path().join("data")],
        1 << 30,
        &folder.path().join("image"),
        &interrupt,
    );
    assert!(matches!(result, Err(DemoError::Interrupted)));
}

#[test]
fn random_data_depends_on_the_seed_and_is_complete() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let build = |name: &str, seed| {
        DataSet::random(8 << 20, seed, &folder.path().join(name), &Interrupt::default()).expect("builds")
    };
    let (one, same, other) = (build("1", 1), build("2", 1), build("3", 2));
    assert_eq!(one.checksums, same.checksums);
    assert_ne!(one.checksums, other.checksums);
    assert_eq!(one.blocks(), 2048);
}
