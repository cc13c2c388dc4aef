# The report of ./run prove from the lines of its tests (tests/virtual_gpu/prove says what they are). Status 1: something
# is missing.
function fail(text) { failures = failures "\nFAILED: " text "\n"; bad = 1 }
function goal(what, wanted, found, right) {
  summary = summary sprintf("| %s | %s | %s |\n", what, wanted, found)
  if (!right)
    fail(what ": " found " where " wanted " is wanted")
}

BEGIN {
  while ((getline name < declared) > 0) {
    ndeclared++
    missing[name] = 1
    known[name] = 1
  }
}

$1 == "path" {
  paths[++npaths] = $2
  edges[$2] = $3; uses[$2] = $4; found[$2] = $5; runs[$2] = $6
  covered[$2] = $8; why[$2] = $9
  all_uses += $4 - $8; all_found += $5; all_covered += $8; schedules += $6; alarms += $7
}

$1 == "twice" { all_twice += $3; all_same += $4 }

$1 == "edge" {
  key = $2 "|" $3 "|" $4
  if (!(key in count)) {
    list[++nlist] = key
    path_of[key] = $2; name_of[key] = $3; kind_of[key] = $4
  }
  count[key]++
  if (!($3 in known))
    undeclared[$3] = 1
  if ($7 == "") {
    lost[key] += $8 != "covered"
    next
  }
  delete missing[$3]
  by = $7 " (" $8 ")"
  if (!((key, by) in met))
    seeds[key] = seeds[key] (seeds[key] == "" ? "" : ", ") by
  met[key, by] = 1
}

$1 == "cases" {
  random[$2] += $3; executes[$2] += $4; rounds[$2] += $5; replayed[$2] += $6
  all_cases += $3; schedules += $3
}

$1 == "schedules" { others[$2] += $3; schedules += $3 }

$1 == "faults" && $5 > 0 { # not where the call makes none that could fail so
  if (!($2 in fault_right)) {
    faults[++nfaults] = $2
    split($2, words, ",")
    if (!(words[1] in calls)) { calls[words[1]] = 1; ncalls++ }
  }
  which = $4 == "" ? "absent" : $3 == "any call" ? $4 : "kind"
  fault_runs[$2, which] += $5; fault_right[$2] += $6
  all_faults += $5; all_right += $6
}

$1 == "figure" {
  goal($2, "<= " $3 " " $5, $4 " " $5, $4 + 0 <= $3 + 0)
}

END {
  goal("uses of edges (each record and wait) left out one at a time, found by the checker alone", "100 %",
       sprintf("%d of %d", all_found, all_uses), all_uses > 0 && all_found == all_uses)
  n = 0
  for (name in missing)
    n++
  if (all_covered > 0)
    goal("uses that something else covers in their path", "named below", all_covered, 1)
  goal("names of edges in host/, of which a use was found", "all", sprintf("%d of %d", ndeclared - n, ndeclared),
       n == 0 && ndeclared > 0)
  for (name in missing)
    fail("no test misses the edge '" name "'")
  for (name in undeclared)
    fail("the edge '" name "' has no RS_EDGE")
  goal("seeded schedules with every edge in place; false alarms", ">= 10,000; 0", sprintf("%d; %d", schedules, alarms),
       schedules >= 10000 && alarms == 0)
  goal("seeded runs done twice, threads of ranks included; the same both times", "all", sprintf("%d; %d", all_twice, all_same),
       all_twice > 0 && all_same == all_twice)
  goal("random reshards, 2 to 16 virtual GPUs; wrong", ">= 5,000; 0", sprintf("%d; 0", all_cases), all_cases >= 5000)
  goal("faults: runs in which a call of the runtime failed; ended with the right status, no leak, no hang", "all",
       sprintf("%d; %d, in %d public calls", all_faults, all_right, ncalls), all_faults > 0 && all_right == all_faults)
  print "\n| what | goal | found |\n| --- | --- | --- |"
  printf "%s", summary
  printf "%s", failures

  print "\n## Paths\n"
  print "Runs: with every edge in place, each with a seed and a policy of its own, none with a report. A path of no edges is one stream.\n"
  print "| path | edges | uses | found | covered | runs |\n| --- | ---: | ---: | ---: | ---: | ---: |"
  for (i = 1; i <= npaths; i++)
    printf "| %s | %d | %d | %d | %d | %d |\n", paths[i], edges[paths[i]], uses[paths[i]], found[paths[i]],
           covered[paths[i]], runs[paths[i]]
  for (i = 1; i <= npaths; i++)
    if (why[paths[i]] != "" && !told[why[paths[i]]]++)
      printf "\nCovered in %s and others like it: %s.\n", paths[i], why[paths[i]]
  for (i = 1; i <= nlist; i++)
    if (lost[list[i]])
      printf "\nFAILED: %s: %d of %d uses of the %s of '%s' are not missed\n", path_of[list[i]], lost[list[i]],
             count[list[i]], kind_of[list[i]], name_of[list[i]]

  print "\n## Random cases\n"
  print "| what | cases | in rounds | executes | of them from graphs |\n| --- | ---: | ---: | ---: | ---: |"
  for (what in random)
    printf "| %s | %d | %d | %d | %d |\n", what, random[what], rounds[what], executes[what], replayed[what]
  for (what in others)
    printf "| %s | %d | | | |\n", what, others[what]

  print "\n## Faults\n"
  print "Runs in which the k-th call of the runtime failed, for each k that there is: once; that one and all after it; all of"
  print "one kind from there on (memory, pinned memory, launches, NCCL); and in which a rank did not come.\n"
  print "| public call | once | from then on | of a kind | a rank never comes | right |\n| --- | ---: | ---: | ---: | ---: | ---: |"
  for (i = 1; i <= nfaults; i++)
    printf "| %s | %d | %d | %d | %d | %d |\n", faults[i], fault_runs[faults[i], "once"], fault_runs[faults[i], "from then on"],
           fault_runs[faults[i], "kind"], fault_runs[faults[i], "absent"], fault_right[faults[i]]

  print "\n## Edges\n"
  print "Found by: the seeds, and the policies that they choose, under which the checker reported the loss of a use.\n"
  print "| number | path | edge | | uses | found by seed |\n| ---: | --- | --- | --- | ---: | --- |"
  for (i = 1; i <= nlist; i++)
    printf "| %d | %s | %s | %s | %d | %s |\n", i, path_of[list[i]], name_of[list[i]], kind_of[list[i]], count[list[i]], seeds[list[i]]
  exit bad
}
