// Package exec groups the packages that start and control programs on the
// host.
//
// They are proc (child processes and their groups), shield (what a child must
// not read), procid (identifying a process so that a reused number is told
// apart), terminal (a screen as text), shellpolicy (the commands of a
// command line, matched against allow and deny patterns) and supervisor (the
// programs that a line starts, matched against them by the kernel's reports).
//
// Modules, packages and sandbox import them; they import the standard library
// and each other. Begin with proc.
package exec
