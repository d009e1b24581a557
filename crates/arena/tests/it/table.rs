//! Problems as text.

use prestow_arena::csv::{Table, parse, write};
use prestow_arena::{Buffer, ByteWindow, Gap, Lifetime};
use types::{Bytes, Random};

use crate::random::{Fixed, Gaps, Kind, random_problem};
use crate::{buffer, place_and_check, problem};

#[track_caller]
fn check_refused(text: &str, message: &str) {
    assert_eq!(parse(text).expect_err("refused").to_string(), message);
}

#[test]
fn all_columns_are_read() {
    let text = "id,lower,upper,size,alignment,offset,gaps\nx,0,9,64,16,32,2-4 5-7@0:8\ny,1,3,32,1,,\n";
    let gaps = vec![
        Gap { lifetime: Lifetime { first: 2, end: 4 }, window: None },
        Gap { lifetime: Lifetime { first: 5, end: 7 }, window: Some(ByteWindow { low: Bytes(0), high: Bytes(8) }) },
    ];
    let x = Buffer { alignment: Bytes(16), fixed: Some(Bytes(32)), gaps, ..buffer(0, 9, 64) };
    let table = parse(text).unwrap();
    assert_eq!(table, Table { ids: vec!["x".into(), "y".into()], problem: problem([x, buffer(1, 3, 32)]) });
    assert_eq!(write(&table, None), text);
}

#[test]
fn column_names_order_and_line_ends_may_vary() {
    let plain = parse("id,lower,upper,size\nx,0,9,64\n").unwrap();
    assert_eq!(parse("size,begin,buffer_id,note,upper\r\n\r\n64,0,x,7,9\r\n"), Ok(plain.clone()));
    assert_eq!(parse("id,lower,upper,size,hint\nx,0,9,64,-1\n"), Ok(plain.clone()), "-1 is no hint");
    let hinted = parse("id,lower,upper,size,hint\nx,0,9,64,7\ny,0,9,64,\n").unwrap();
    assert_eq!((hinted.problem.buffers[0].hint, hinted.problem.buffers[1].hint), (Some(Bytes(7)), None));
    assert_eq!(write(&hinted, None), "id,lower,upper,size,hint\nx,0,9,64,7\ny,0,9,64,\n");
    assert_eq!(parse("buffer, start, end, size\nx, 0, 8, 64"), Ok(plain));
    let table = parse("id,start,end,size,gaps\nx,0,8,64,2-3\n").unwrap();
    assert_eq!(write(&table, None), "id,lower,upper,size,gaps\nx,0,9,64,2-4\n", "`end` counts in gaps too");
}

#[test]
fn offsets_are_written() {
    let table = parse("id,lower,upper,size\nx,0,2,64\ny,1,3,32\n").unwrap();
    let placement = place_and_check(&table.problem);
    let text = write(&table, Some(&placement.offsets));
    assert_eq!(text, "id,lower,upper,size,offset\nx,0,2,64,0\ny,1,3,32,64\n");
    assert_eq!(place_and_check(&parse(&text).unwrap().problem).offsets, placement.offsets, "read back as fixed");
}

/// A file with names, an absence, a window and a fixed offset keeps its rows and their order, and gets one more column.
#[test]
fn names_stay_with_their_offsets() {
    let text = "id,lower,upper,size,offset,gaps\nconv1#output,0,9,64,,2-4 5-7@0:8\ndata,1,3,32,64,\n\
                conv1#workspace,2,4,64,,\nfc#output,5,7,56,,\n";
    let table = parse(text).unwrap();
    let placement = place_and_check(&table.problem);
    let placed = write(&table, Some(&placement.offsets));
    let ids: Vec<&str> = placed.lines().map(|line| line.split(',').next().expect("a field")).collect();
    assert_eq!(ids, ["id", "conv1#output", "data", "conv1#workspace", "fc#output"]);
    assert!(placed.lines().any(|line| line == "data,1,3,32,64,"), "a fixed offset stays: {placed}");
    // `conv1#output` has no bytes at steps 2 and 3, and its first eight at steps 5 and 6: the workspace and `fc#output` take the
    // others.
    assert_eq!(placement.height().0, 96, "{placed}");
    assert!(placed.contains("conv1#workspace,2,4,64,0,"), "{placed}");
    assert_eq!(parse(&placed).unwrap().ids, table.ids);
    let again = place_and_check(&parse(&placed).unwrap().problem);
    assert_eq!(again.offsets, placement.offsets, "all of it is fixed now");
}

#[test]
fn random_tables_round_trip() {
    let kind = Kind {
        n_buffers_max: 8,
        n_steps: 9,
        size_max: 20,
        alignments: &[1, 1, 1, 8],
        gaps: Gaps::Windows,
        fixed: Fixed::Some,
    };
    let mut random = Random::new(30);
    for _ in 0..2000 {
        let problem = random_problem(&mut random, kind);
        let ids = (0..problem.buffers.len()).map(|ix| format!("stage{ix}/conv#workspace")).collect();
        let table = Table { ids, problem };
        assert_eq!(parse(&write(&table, None)), Ok(table));
    }
}

#[test]
fn commas_in_names_are_replaced() {
    let table = Table { ids: vec!["a,b\nc".into()], problem: problem([buffer(0, 1, 2)]) };
    assert_eq!(write(&table, None), "id,lower,upper,size\na_b_c,0,1,2\n");
}

#[test]
fn invalid_tables_are_refused() {
    let missing = "the first line must have the columns `id,lower,upper,size`, got none called `id`";
    check_refused("", missing);
    check_refused("x,0,9,64\n", missing);
    check_refused("id,buffer,lower,upper,size\n", "column `id` must occur once in the first line, got it twice");
    check_refused("id,lower,upper,size\n\nx,0,9\n", "line `3` must have `4` fields as the first line, got `3`");
    check_refused(
        "id,lower,upper,size\nx,-1,9,64\n",
        "line `2`, column `lower` must be a step from 0 to 4294967295, got `-1`",
    );
    check_refused(
        "id,lower,upper,size\nx,1,9,\n",
        "line `2`, column `size` must be a count of bytes from 0 to 18446744073709551615, got ``",
    );
    check_refused(
        "id,lower,end,size\nx,1,4294967295,2\n",
        "line `2`, column `upper` must be a step from 0 to 4294967295, got `4294967295`",
    );
    for word in ["3", "3-", "3-5@", "3-5@7", "3-x"] {
        check_refused(
            &format!("id,lower,upper,size,gaps\nx,1,9,2,{word}\n"),
            &format!("line `2`, column `gaps` must be a gap such as `3-5` or `3-5@0:64`, got `{word}`"),
        );
    }
}
