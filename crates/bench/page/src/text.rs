//! Text in a page.

/// Escapes text for an element or an attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Not allowed in XML.
            control if control.is_control() && control != '\n' && control != '\t' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Text in lines of at most `columns` characters, unless a word is longer.
#[must_use]
pub fn wrapped(text: &str, columns: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let length = lines.last().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(line) if length == 0 => line.push_str(word),
            Some(line) if length + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// Signs that terminal output lacks: "±" for "+-" before a number, "µs" for "us" after one.
#[must_use]
pub fn signs(text: &str) -> String {
    let is_digit = |it: char| it.is_ascii_digit();
    let text = replaced(text, "+-", "±", |_, after| {
        after.trim_start().starts_with(is_digit)
    });
    replaced(&text, " us", " µs", |before, after| {
        before.ends_with(is_digit) && !after.starts_with(char::is_alphanumeric)
    })
}

/// Replaces `from` where `is_meant`, given the text before and after it.
fn replaced(text: &str, from: &str, to: &str, is_meant: impl Fn(&str, &str) -> bool) -> String {
    let mut result = String::with_capacity(text.len());
    let mut end = 0;
    for (at, _) in text.match_indices(from) {
        let after = at + from.len();
        if is_meant(&text[..at], &text[after..]) {
            result.push_str(&text[end..at]);
            result.push_str(to);
            end = after;
        }
    }
    result + &text[end..]
}

/// Running text: escaped, with [`signs`], and no line break between a number and its unit.
#[must_use]
pub fn prose(text: &str) -> String {
    const UNITS: [&str; 8] = ["KiB", "MiB", "GiB", "MB/s", "ms", "µs", "s", "%"];
    let text = signs(text);
    let mut glued = String::with_capacity(text.len());
    let mut pieces = text.split(' ').peekable();
    while let Some(piece) = pieces.next() {
        glued.push_str(piece);
        if let Some(next) = pieces.peek() {
            let unit = next.trim_end_matches(|character: char| ",.;:)".contains(character));
            let number = piece.ends_with(|character: char| character.is_ascii_digit());
            glued.push(if number && UNITS.contains(&unit) {
                '\u{a0}'
            } else {
                ' '
            });
        }
    }
    escape(&glued)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped("a bb ccc dddd", 6), "a bb\nccc\ndddd");
        assert_eq!(wrapped("ééé éé é", 6), "ééé éé\né");
        assert_eq!(wrapped("longer than it", 3), "longer\nthan\nit");
        assert_eq!(wrapped("", 3), "");
    }

    #[test]
    fn markup_in_text_is_harmless() {
        assert_eq!(
            escape("<a href='x'>&\"\u{1}"),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\u{fffd}"
        );
    }

    #[test]
    fn signs_stand_for_those_of_a_terminal() {
        assert_eq!(
            signs("87.1 +- 0.5 %, +-5 points, 3 us (12 us)"),
            "87.1 ± 0.5 %, ±5 points, 3 µs (12 µs)"
        );
        for text in ["a+-b", "9 users", "join us", "", "us +-"] {
            assert_eq!(signs(text), text);
        }
    }

    #[test]
    fn numbers_keep_their_units() {
        assert_eq!(
            prose("has 64.0 MiB, 25 % & 3 us; 4 clients"),
            "has 64.0\u{a0}MiB, 25\u{a0}% &amp; 3\u{a0}µs; 4 clients"
        );
    }
}
