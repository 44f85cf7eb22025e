//! Checks in tests that a page is well-formed, without a browser.

/// Number of elements in a page.
///
/// # Errors
/// Why it is not well-formed.
pub fn elements(page: &str) -> Result<usize, String> {
    let body = page.strip_prefix("<!DOCTYPE html>").ok_or("no doctype")?;
    let mut open = Vec::new();
    let mut elements = 0;
    let mut rest = body;
    while let Some((before, tag)) = rest.split_once('<') {
        if before.contains('>') && open.last() != Some(&"style") {
            return Err(format!("a stray > in {before:?}"));
        }
        let (tag, after) = tag
            .split_once('>')
            .ok_or_else(|| format!("an open tag: {tag:.40}"))?;
        rest = after;
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/', '\n'])
            .next()
            .unwrap_or_default();
        if tag.starts_with('/') {
            let last = open.pop();
            if last != Some(name) {
                return Err(format!("</{name}> ends {last:?}"));
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        if tag.matches('"').count() % 2 == 1 {
            return Err(format!("quotes in <{tag}>"));
        }
        elements += 1;
    }
    if open.is_empty() {
        Ok(elements)
    } else {
        Err(format!("left open: {open:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::elements as balanced;

    #[test]
    fn unbalanced_pages_are_noticed() {
        assert!(balanced("<!DOCTYPE html><p><b>x</p></b>").is_err());
        assert!(balanced("<!DOCTYPE html><p class=\"x>y</p>").is_err());
        assert!(balanced("<!DOCTYPE html><p>").is_err());
    }
}
