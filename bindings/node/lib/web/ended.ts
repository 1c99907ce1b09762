// The starts that a client ends no more, of which it tells the leader. (`Leader` 4)
//
// *A leader that was told may not have written it.* It does that with the end of a start. So a client keeps what it has told until an end
// that it sent later, or with it, is answered, and tells it to the next leader, too.

export class Ended {
  #untold: string[] = [];
  #told: { readonly message: number; readonly starts: readonly string[] }[] = [];

  add(start: string): void {
    this.#untold.push(start);
  }

  /** Returns what the leader is to be told with a message of this number. Later messages have higher numbers. */
  tell(message: number): readonly string[] {
    const starts = this.#untold;
    if (starts.length === 0) return starts;
    this.#untold = [];
    this.#told.push({ message, starts });
    return starts;
  }

  /** The leader has written the end that was sent with this message. */
  written(message: number): void {
    while (this.#told.length > 0 && this.#told[0]!.message <= message) this.#told.shift();
  }

  /** Another one leads. */
  tellAgain(): void {
    this.#untold = [...this.#told.splice(0).flatMap(({ starts }) => starts), ...this.#untold];
  }
}
