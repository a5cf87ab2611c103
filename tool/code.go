package tool

// A Code is the kind of a Refusal: a word that programs and models can act on.
// It is the first word of the text that a model reads. The codes of this
// program are the constants below; a module of another program may use its own.
type Code string

// The codes of this program, with the meaning that docs/protocol.md lists.
const (
	CodeAmbiguous        Code = "ambiguous"         // The text to edit occurs more than once.
	CodeBinary           Code = "binary"            // The content is not text.
	CodeBroken           Code = "broken"            // The edit would leave a file that no longer parses.
	CodeBusy             Code = "busy"              // A limit is reached; the call may be repeated later.
	CodeCancelled        Code = "cancelled"         // The caller or the host cancelled the call.
	CodeClosed           Code = "closed"            // The input of the process is closed.
	CodeDamaged          Code = "damaged"           // The backup is incomplete or was changed.
	CodeDeclined         Code = "declined"          // The user was asked and refused.
	CodeDenied           Code = "denied"            // A permission, a rule or the operating system refuses it.
	CodeDiskFull         Code = "disk_full"         // The disk or a quota has no space left.
	CodeExists           Code = "exists"            // What is to be created already exists.
	CodeFailed           Code = "failed"            // The operation was tried and failed.
	CodeGone             Code = "gone"              // The sandbox has ended.
	CodeInternal         Code = "internal"          // The host failed; its log has the reason.
	CodeInvalidArguments Code = "invalid_arguments" // An argument does not have the form or value that is expected.
	CodeIsADirectory     Code = "is_a_directory"    // A file was expected, and the path names a directory.
	CodeNeedsApproval    Code = "needs_approval"    // An operator has to approve the call.
	CodeNotADirectory    Code = "not_a_directory"   // A directory was expected, and the path names something else.
	CodeNotAFile         Code = "not_a_file"        // A regular file was expected, and the path names something else.
	CodeNotEmpty         Code = "not_empty"         // The directory is not empty.
	CodeNotFound         Code = "not_found"         // What the arguments name does not exist.
	CodeNotStarted       Code = "not_started"       // The program could not be started.
	CodeNotTaken         Code = "not_taken"         // The process does not accept the input or signal.
	CodeNotWatched       Code = "not_watched"       // The path cannot be watched for changes.
	CodeOutsideRoot      Code = "outside_root"      // The path lies outside the directories that the caller may use.
	CodeOverlap          Code = "overlap"           // Two edits of one call change the same text.
	CodePaused           Code = "paused"            // The sandbox is paused.
	CodeStale            Code = "stale"             // The file changed after the caller read it.
	CodeTimeout          Code = "timeout"           // The time limit of the call passed.
	CodeTooLarge         Code = "too_large"         // The input or result is larger than a limit.
	CodeTooMany          Code = "too_many"          // The caller has as many of these as it may have.
	CodeTooManyRounds    Code = "too_many_rounds"   // The call asked more questions than one call may.
	CodeUnanswered       Code = "unanswered"        // The client did not answer a question of the call.
	CodeUnavailable      Code = "unavailable"       // A service that the call needs cannot be reached or used now.
	CodeUnchanged        Code = "unchanged"         // The edit would change nothing.
	CodeUnclear          Code = "unclear"           // The place of an edit cannot be determined.
	CodeUnconfirmed      Code = "unconfirmed"       // A confirmation is required and was not given.
	CodeUnreachable      Code = "unreachable"       // The remote address does not answer.
	CodeUnsupported      Code = "unsupported"       // This client, platform or configuration cannot do it.
)
