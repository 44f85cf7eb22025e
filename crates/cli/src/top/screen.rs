//! The table on a terminal. A thread asks the daemons, so that keys are answered at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Row, Span, Text};
use ratatui::widgets::Paragraph;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::sample::Sampler;
use super::table::{Column, Line, Row as CacheRow, Table, table};
use super::{NONE, TopArgs};
use crate::error::Failure;
use crate::report::HealthLevel;
use crate::size::counted;

/// How long the program waits for a key before it looks for a new sample.
const KEYS: Duration = Duration::from_millis(100);
/// Lines besides caches: heading, heads of the columns, total, keys.
const OTHER_LINES: usize = 4;

/// What keys change.
#[derive(Debug)]
struct View {
    sort: Column,
    reversed: bool,
    /// Number of caches above the first one shown.
    scrolled: usize,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Stay,
    Quit,
}

/// Shows the table until a key or a signal ends it.
///
/// # Errors
/// The terminal fails.
pub(super) fn run(args: &TopArgs, sampler: Sampler) -> Result<(), Failure> {
    let failed = || Failure::system("using the terminal (--plain prints lines)");
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(Failure::system("handling signals"))?;
    }
    let samples = start(args, sampler)?;
    let mut terminal = ratatui::try_init().map_err(failed())?;
    let colours = crate::commands::output::in_colour();
    let shown = show(args, &mut terminal, &samples, &ended, colours);
    ratatui::try_restore().map_err(failed())?;
    shown.map_err(failed())
}

/// Starts the thread that asks. It ends when the receiver is gone.
fn start(args: &TopArgs, mut sampler: Sampler) -> Result<Receiver<Vec<CacheRow>>, Failure> {
    let (sender, samples) = sync_channel(1);
    let (interval, count) = (args.interval, args.count);
    std::thread::Builder::new()
        .name("sampler".to_owned())
        .spawn(move || {
            let mut sent = 0;
            while count.is_none_or(|count| sent < count) {
                let begun = std::time::Instant::now();
                if sender.send(sampler.sample()).is_err() {
                    return;
                }
                sent += 1;
                std::thread::sleep(interval.saturating_sub(begun.elapsed()));
            }
        })
        .map_err(Failure::system("starting a thread"))?;
    Ok(samples)
}

fn show(
    args: &TopArgs,
    terminal: &mut DefaultTerminal,
    samples: &Receiver<Vec<CacheRow>>,
    ended: &AtomicBool,
    colours: bool,
) -> io::Result<()> {
    let mut view = View {
        sort: args.sort,
        reversed: args.reverse,
        scrolled: 0,
    };
    let mut rows: Option<Vec<CacheRow>> = None;
    loop {
        match samples.try_recv() {
            Ok(sample) => rows = Some(sample),
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            // All samples that were asked for have been shown.
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(()),
        }
        terminal.draw(|frame| {
            let area = frame.area();
            let page = page(
                rows.as_deref(),
                &mut view,
                area.width.into(),
                area.height.into(),
                colours,
            );
            frame.render_widget(Paragraph::new(page), area);
        })?;
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        if event::poll(KEYS)?
            && let Event::Key(key) = event::read()?
            && view.press(key) == Step::Quit
        {
            return Ok(());
        }
    }
}

impl View {
    fn press(&mut self, key: KeyEvent) -> Step {
        if key.kind != KeyEventKind::Press {
            return Step::Stay;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Step::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Step::Quit,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Down | KeyCode::Char('j') => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        Step::Stay
    }
}

/// The whole screen.
fn page(
    rows: Option<&[CacheRow]>,
    view: &mut View,
    width: usize,
    height: usize,
    colours: bool,
) -> Text<'static> {
    let Some(rows) = rows else {
        return Text::from("asking the caches of this host ..");
    };
    let Table { head, rows, total } = table(rows.to_vec(), width, view.sort, view.reversed);
    let room = height.saturating_sub(OTHER_LINES).max(1);
    view.scrolled = view.scrolled.min(rows.len().saturating_sub(room));
    let order = if view.reversed { ", reversed" } else { "" };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![
        Row::from(Span::styled(heading(&rows), bold)),
        Row::from(Span::styled(
            format!("{head:<width$}"),
            Style::new().add_modifier(Modifier::REVERSED),
        )),
    ];
    if rows.is_empty() {
        lines.push(Row::from(NONE));
    }
    let shown = rows.iter().skip(view.scrolled).take(room);
    lines.extend(shown.map(|line| Row::from(Span::styled(line.text.clone(), style(line, colours)))));
    if let Some(total) = total {
        lines.push(Row::from(Span::styled(total.text, bold)));
    }
    lines.push(Row::from(Span::styled(
        format!(
            "q quit  s sort: {}{order}  r reverse  arrows scroll",
            view.sort.word()
        ),
        Style::new().add_modifier(Modifier::DIM),
    )));
    Text::from(lines)
}

fn heading(rows: &[Line]) -> String {
    let count = |level| rows.iter().filter(|row| row.level == level).count();
    format!(
        "flaz top: {}, {} healthy, {} with warnings, {} failed",
        counted(rows.len() as u64, "cache", "caches"),
        count(HealthLevel::Healthy),
        count(HealthLevel::Warning),
        count(HealthLevel::Failed)
    )
}

fn style(line: &Line, colours: bool) -> Style {
    match line.level {
        HealthLevel::Failed if colours => Style::new().fg(Color::Red),
        HealthLevel::Warning if colours => Style::new().fg(Color::Yellow),
        HealthLevel::Failed => Style::new().add_modifier(Modifier::BOLD),
        HealthLevel::Warning | HealthLevel::Healthy => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::RowState;
    use super::*;

    fn silent(count: usize) -> Vec<CacheRow> {
        let row = |number| CacheRow {
            name: format!("cache-{number:02}"),
            state: RowState::Silent("gone"),
        };
        (0..count).map(row).collect()
    }

    fn view() -> View {
        View {
            sort: Column::Name,
            reversed: false,
            scrolled: 0,
        }
    }

    fn text(rows: usize, view: &mut View, height: usize) -> Vec<String> {
        let page = page(Some(&silent(rows)), view, 80, height, true);
        page.lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_screen_shows_as_many_caches_as_fit() {
        let mut view = view();
        let lines = text(30, &mut view, 10);
        assert_eq!(lines.len(), 10);
        assert!(lines[0].starts_with("flaz top: 30 caches, 0 healthy, 0 with warnings, 30 failed"));
        assert!(
            lines[2].starts_with("cache-00") && lines[7].starts_with("cache-05"),
            "{lines:?}"
        );
        assert!(
            lines[8].starts_with("total") && lines[9].starts_with("q quit"),
            "{lines:?}"
        );
        // Scrolling ends with the last cache.
        for _ in 0..100 {
            view.press(KeyCode::Down.into());
            text(30, &mut view, 10);
        }
        assert!(text(30, &mut view, 10)[7].starts_with("cache-29"));
        view.press(KeyCode::Up.into());
        assert!(text(30, &mut view, 10)[7].starts_with("cache-28"));
        assert_eq!(text(1, &mut view, 10).len(), 4, "no total of one cache");
        assert!(text(0, &mut view, 10)[2].contains("no cache is running"));
        text(30, &mut view, 0);
    }

    #[test]
    fn keys_change_the_order_and_quit() {
        let mut view = view();
        assert_eq!(view.press(KeyCode::Char('r').into()), Step::Stay);
        assert!(text(3, &mut view, 24)[2].starts_with("cache-02"));
        view.press(KeyCode::Char('s').into());
        assert!(
            text(3, &mut view, 24)
                .last()
                .unwrap()
                .contains("s sort: state, reversed")
        );
        assert_eq!(view.press(KeyCode::Char('x').into()), Step::Stay);
        for key in [
            KeyCode::Char('q').into(),
            KeyCode::Esc.into(),
            KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert_eq!(view.press(key), Step::Quit);
        }
    }
}
