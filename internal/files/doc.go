// Package files groups the packages that work on files.
//
// They are roots (the folders a call may use), walk, search, symbols, extract (documents as text), language,
// index (texts that can be searched by meaning), edit, filewatch, filelock, atomicfile (small
// private files) and sqlfile (database files).
//
// Every subsystem may import them; they import the standard library, tool and
// each other. Begin with roots: every path of a caller goes through it.
package files
